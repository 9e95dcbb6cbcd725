//! The commands, one file each, and their dispatch.
//!
//! ```text
//!   Command    clap's list of all commands; run() starts the requested one
//!     v
//!   cp/ tar/ image/ disk/ cache/ warm/   commands of several files
//!   ls cat stat rm ...        commands of one file
//! ```
//!
//! No command uses another one. Above: `cli`, which parses the arguments. Below: `arguments`,
//! `tree_copy`, `image`, `source`, `walk`, `session`, `output`.

mod bench;
mod cache;
mod cat;
mod check;
mod chmod;
mod chown;
mod completions;
mod cp;
mod ctl;
mod debug;
mod df;
mod diff;
mod direct;
mod disk;
mod doctor;
mod du;
mod edit;
mod find;
mod fork;
mod image;
mod info;
mod ln;
mod ls;
mod man;
mod mkdir;
mod mkfs;
mod mknod;
mod mount;
mod mv;
mod notify;
mod powercut;
#[cfg(feature = "object-store")]
mod push;
mod resize;
mod rm;
mod run;
#[cfg(test)]
mod schemas;
mod serve;
mod share;
mod shell;
mod stat;
#[cfg(feature = "object-store")]
mod store;
mod tar;
mod touch;
mod tree;
mod trim;
mod truncate;
mod tune;
#[cfg(feature = "object-store")]
mod volume;
mod warm;
mod write;

use crate::exit::{Exit, Outcome};
use crate::global_options::GlobalOptions;
use crate::image_path::start_inside;
use crate::memory::mount_cache_bytes;
use crate::session::Session;
use clap::Subcommand;

/// All commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    Cp(cp::Cp),
    Tar(tar::Tar),
    Ls(ls::Ls),
    Tree(tree::Tree),
    Cat(cat::Cat),
    Stat(stat::Stat),
    Find(find::Find),
    Du(du::Du),
    Df(df::Df),
    Diff(diff::Diff),
    Mkdir(mkdir::Mkdir),
    Mknod(mknod::Mknod),
    Rm(rm::Rm),
    Mv(mv::Mv),
    Ln(ln::Ln),
    Chmod(chmod::Chmod),
    Chown(chown::Chown),
    Touch(touch::Touch),
    Truncate(truncate::Truncate),
    Write(write::Write),
    Edit(edit::Edit),
    Shell(shell::Shell),
    Mkfs(mkfs::Mkfs),
    Resize(resize::Resize),
    Trim(trim::Trim),
    Tune(tune::Tune),
    Mount(mount::Mount),
    Run(run::Run),
    Check(check::Check),
    Info(info::Info),
    Debug(debug::Debug),
    Image(image::Image),
    Fork(fork::Fork),
    Ctl(ctl::Ctl),
    #[cfg(feature = "object-store")]
    Push(push::Push),
    Disk(disk::Disk),
    Serve(serve::Serve),
    Share(share::Share),
    Notify(notify::Notify),
    #[cfg(feature = "object-store")]
    Volume(volume::Volume),
    #[cfg(feature = "object-store")]
    Store(store::Store),
    Warm(warm::WarmCommand),
    Cache(cache::Cache),
    Completions(completions::Completions),
    Man(man::Man),
    Doctor(doctor::Doctor),
    Powercut(powercut::Powercut),
    Bench(bench::Bench),
}

/// Runs `command` and returns its exit code. `tree` builds clap's tree of all commands, for manual
/// pages and completions.
pub(crate) fn run(command: &Command, global: &GlobalOptions, tree: fn() -> clap::Command) -> Exit {
    #[cfg(feature = "object-store")]
    {
        let images = crate::objects::set_options(global.objects.image_options());
        global.volumes.provide(images);
    }
    if let Some(Err(failure)) = global.inside.as_deref().map(start_inside) {
        return Session::without_signals("shell", global).exit(Err(failure));
    }
    crate::volumes::close_all(dispatch(command, global, tree))
}

fn dispatch(command: &Command, global: &GlobalOptions, tree: fn() -> clap::Command) -> Exit {
    let with = |session: Session, run: &dyn Fn(&Session) -> Outcome| session.exit(run(&session));
    let done = |name, run: &dyn Fn(&Session) -> Outcome| with(Session::new(name, global), run);
    // Commands that serve handle signals themselves.
    let serve =
        |name, run: &dyn Fn(&Session) -> Outcome| with(Session::without_signals(name, global), run);
    let pass_on = |name, run: &dyn Fn(&Session) -> Outcome<u8>| pass_on(global, name, run);
    match command {
        Command::Cp(cp) => done("cp", &|session| cp::run(cp, session)),
        Command::Tar(tar) => done("tar", &|session| tar::run(tar, session)),
        Command::Ls(ls) => done("ls", &|session| ls::run(ls, session)),
        Command::Tree(tree) => done("tree", &|session| tree::run(tree, session)),
        Command::Cat(cat) => done("cat", &|session| cat::run(cat, session)),
        Command::Stat(stat) => done("stat", &|session| stat::run(stat, session)),
        Command::Find(find) => done("find", &|session| find::run(find, session)),
        Command::Du(du) => done("du", &|session| du::run(du, session)),
        Command::Df(df) => done("df", &|session| df::run(df, session)),
        Command::Mkdir(mkdir) => done("mkdir", &|session| mkdir::run(mkdir, session)),
        Command::Mknod(mknod) => done("mknod", &|session| mknod::run(mknod, session)),
        Command::Rm(rm) => done("rm", &|session| rm::run(rm, session)),
        Command::Mv(mv) => done("mv", &|session| mv::run(mv, session)),
        Command::Ln(ln) => done("ln", &|session| ln::run(ln, session)),
        Command::Chmod(chmod) => done("chmod", &|session| chmod::run(chmod, session)),
        Command::Chown(chown) => done("chown", &|session| chown::run(chown, session)),
        Command::Touch(touch) => done("touch", &|session| touch::run(touch, session)),
        Command::Truncate(cut) => done("truncate", &|session| truncate::run(cut, session)),
        Command::Write(write) => done("write", &|session| write::run(write, session)),
        Command::Diff(diff) => done("diff", &|session| diff::run(diff, session)),
        Command::Edit(edit) => done("edit", &|session| edit::run(edit, session)),
        Command::Fork(fork) => done("fork", &|session| fork::run(fork, session)),
        Command::Ctl(ctl) => done("ctl", &|session| ctl::run(ctl, session)),
        Command::Tune(tune) => done("tune", &|session| tune::run(tune, session)),
        Command::Mkfs(mkfs) => done("mkfs", &|session| mkfs::run(mkfs, session)),
        Command::Resize(resize) => done("resize", &|session| resize::run(resize, session)),
        Command::Trim(trim) => done("trim", &|session| trim::run(trim, session)),
        Command::Mount(mount) => {
            let mut session = Session::without_signals("mount", global);
            session.cache_bytes = global.cache.unwrap_or_else(mount_cache_bytes);
            with(session, &|session| mount::run(mount, session))
        }
        Command::Run(args) => pass_on("run", &|session| run::run(args, session)),
        Command::Shell(args) => pass_on("shell", &|session| shell::run(args, session, tree)),
        Command::Check(check) => done("check", &|session| check::run(check, session)),
        #[cfg(feature = "object-store")]
        Command::Push(push) => done("push", &|session| push::run(push, session)),
        Command::Info(info) => done("info", &|session| info::run(info, session)),
        Command::Debug(debug) => done("debug", &|session| debug::run(debug, session)),
        Command::Serve(args) => serve(serve::name(args), &|session| serve::run(args, session)),
        Command::Share(share) => serve("share", &|session| share::run(share, session)),
        Command::Notify(notify) => serve("notify", &|session| notify::run(notify, session)),
        Command::Doctor(doctor) => done("doctor", &|session| doctor::run(doctor, session)),
        Command::Powercut(cut) => done("powercut", &|session| powercut::run(cut, session)),
        Command::Bench(bench) => done("bench", &|session| bench::run(bench, session)),
        Command::Warm(warm) => done("warm", &|session| warm::run(warm, session)),
        Command::Cache(cache) => done(cache::name(cache), &|session| cache::run(cache, session)),
        Command::Disk(disk) => done(disk::name(disk), &|session| disk::run(disk, session)),
        Command::Completions(args) => done("completions", &|session| {
            completions::run(args, session, &tree())
        }),
        Command::Man(man) => done("man", &|session| man::run(man, session, tree())),
        #[cfg(feature = "object-store")]
        Command::Volume(args) => done(volume::name(args), &|session| volume::run(args, session)),
        #[cfg(feature = "object-store")]
        Command::Store(args) => done("store check", &|session| store::run(args, session)),
        Command::Image(image) => {
            let session = Session::new(image::name(image), global).with_manners(image.manners());
            with(session, &|session| image::run(image, session))
        }
    }
}

/// Runs a command that ends with the exit code of another program.
fn pass_on(
    global: &GlobalOptions,
    name: &'static str,
    run: &dyn Fn(&Session) -> Outcome<u8>,
) -> Exit {
    let session = Session::without_signals(name, global);
    match run(&session) {
        Ok(code) => match session.exit(Ok(())) {
            Exit::Done => Exit::Command(code),
            exit => exit,
        },
        Err(failure) => session.exit(Err(failure)),
    }
}
