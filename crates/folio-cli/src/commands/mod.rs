//! The commands, one file each, and the list of them.

mod bench;
mod cache;
mod cat;
mod change;
mod check;
mod completions;
mod cp;
mod df;
mod doctor;
mod du;
mod find;
mod image;
mod ls;
mod man;
mod mkfs;
mod mount;
mod names;
mod remote;
mod resize;
mod select;
mod serve;
mod share;
mod stat;
mod tune;
mod warm;
mod write;

use crate::args::Arguments;
use crate::exit::{Exit, Outcome};
use crate::session::Session;
use clap::Subcommand;

/// All commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    Cp(cp::Cp),
    Ls(ls::Ls),
    Tree(ls::Tree),
    Cat(cat::Cat),
    Stat(stat::Stat),
    Find(find::Find),
    Du(du::Du),
    Df(df::Df),
    Mkdir(names::Mkdir),
    Rm(names::Rm),
    Mv(names::Mv),
    Ln(names::Ln),
    Chmod(change::Chmod),
    Chown(change::Chown),
    Touch(change::Touch),
    Truncate(change::Truncate),
    Write(write::Write),
    Mkfs(mkfs::Mkfs),
    Resize(resize::Resize),
    Tune(tune::Tune),
    Mount(mount::Mount),
    Check(check::Check),
    Image(image::Image),
    Serve(serve::Serve),
    Share(share::Share),
    Warm(warm::WarmCommand),
    Cache(cache::Cache),
    Completions(completions::Completions),
    Man(man::Man),
    Doctor(doctor::Doctor),
    Bench(bench::Bench),
}

/// Runs what the command line asks for and tells how it ended.
pub(crate) fn run(arguments: &Arguments) -> Exit {
    let session = |name| Session::new(name, &arguments.global);
    let done = |session: Session, run: &dyn Fn(&Session) -> Outcome| session.exit(run(&session));
    match &arguments.command {
        Command::Cp(cp) => done(session("cp"), &|session| cp::run(cp, session)),
        Command::Ls(ls) => done(session("ls"), &|session| ls::run(ls, session)),
        Command::Tree(tree) => done(session("tree"), &|session| ls::tree(tree, session)),
        Command::Cat(cat) => done(session("cat"), &|session| cat::run(cat, session)),
        Command::Stat(stat) => done(session("stat"), &|session| stat::run(stat, session)),
        Command::Find(find) => done(session("find"), &|session| find::run(find, session)),
        Command::Du(du) => done(session("du"), &|session| du::run(du, session)),
        Command::Df(df) => done(session("df"), &|session| df::run(df, session)),
        Command::Mkdir(mkdir) => done(session("mkdir"), &|session| names::mkdir(mkdir, session)),
        Command::Rm(rm) => done(session("rm"), &|session| names::rm(rm, session)),
        Command::Mv(mv) => done(session("mv"), &|session| names::mv(mv, session)),
        Command::Ln(ln) => done(session("ln"), &|session| names::ln(ln, session)),
        Command::Chmod(chmod) => done(session("chmod"), &|session| change::chmod(chmod, session)),
        Command::Chown(chown) => done(session("chown"), &|session| change::chown(chown, session)),
        Command::Touch(touch) => done(session("touch"), &|session| change::touch(touch, session)),
        Command::Truncate(cut) => done(session("truncate"), &|session| {
            change::truncate(cut, session)
        }),
        Command::Write(write) => done(session("write"), &|session| write::run(write, session)),
        Command::Tune(tune) => done(session("tune"), &|session| tune::run(tune, session)),
        Command::Mkfs(mkfs) => done(session("mkfs"), &|session| mkfs::run(mkfs, session)),
        Command::Resize(resize) => done(session("resize"), &|session| resize::run(resize, session)),
        Command::Mount(mount) => done(
            Session::without_signals("mount", &arguments.global),
            &|session| mount::run(mount, session),
        ),
        Command::Check(check) => done(session("check"), &|session| check::run(check, session)),
        Command::Serve(serve) => {
            let session = Session::without_signals(serve::name(serve), &arguments.global);
            done(session, &|session| serve::run(serve, session))
        }
        Command::Share(share) => done(
            Session::without_signals("share", &arguments.global),
            &|session| share::run(share, session),
        ),
        Command::Doctor(doctor) => done(session("doctor"), &|session| doctor::run(doctor, session)),
        Command::Bench(bench) => done(session("bench"), &|session| bench::run(bench, session)),
        Command::Warm(warm) => done(session("warm"), &|session| warm::run(warm, session)),
        Command::Cache(cache) => done(session(cache::name(cache)), &|session| {
            cache::run(cache, session)
        }),
        Command::Completions(shell) => done(session("completions"), &|session| {
            completions::run(shell, session)
        }),
        Command::Man(man) => done(session("man"), &|session| man::run(man, session)),
        Command::Image(image) => done(session(image::name(image)), &|session| {
            image::run(image, session)
        }),
    }
}
