//! readv, preadv, writev, pwritev: several buffers in one call.

use super::{CREATE, READ, fails, read, world, write};
use folio::syscall::OpenFlags;
use std::io::{IoSlice, IoSliceMut};

#[test]
fn vectored_write_joins_buffers() {
    let (_kernel, p) = world();
    let fd = p.open("/f", CREATE, 0o644).unwrap();
    let large = vec![7; 3 << 20];
    let bufs = [
        IoSlice::new(b"ab"),
        IoSlice::new(b""),
        IoSlice::new(&large),
        IoSlice::new(b"cd"),
    ];
    assert_eq!(p.writev(fd, &bufs).unwrap(), large.len() + 4);
    assert_eq!(p.pwritev(fd, &[IoSlice::new(b"X")], 1).unwrap(), 1);
    let want = [b"aX", &large[..], b"cd"].concat();
    assert!(read(&p, "/f") == want);
    let end = p
        .open("/f", OpenFlags::WRONLY | OpenFlags::APPEND, 0)
        .unwrap();
    assert_eq!(p.pwritev(end, &[IoSlice::new(b"e")], 0).unwrap(), 1);
    assert!(read(&p, "/f") == [&want[..], b"e"].concat());
    assert_eq!(p.writev(fd, &[]).unwrap(), 0);
}

#[test]
fn vectored_read_stops_at_eof() {
    let (_kernel, p) = world();
    write(&p, "/f", b"0123456789");
    let fd = p.open("/f", READ, 0).unwrap();
    let (mut one, mut two, mut three) = ([0; 4], [0; 4], [9; 4]);
    let mut bufs = [&mut one, &mut two, &mut three].map(|buf| IoSliceMut::new(buf));
    assert_eq!(p.preadv(fd, &mut bufs, 1).unwrap(), 9);
    assert_eq!((&one, &two, &three), (b"1234", b"5678", b"9\x09\x09\x09"));
    let mut bufs = [&mut one, &mut two].map(|buf| IoSliceMut::new(buf));
    assert_eq!(p.readv(fd, &mut bufs).unwrap(), 8);
    assert_eq!(p.readv(fd, &mut bufs).unwrap(), 2);
    assert_eq!(p.readv(fd, &mut bufs).unwrap(), 0);
    assert_eq!((&one, &two), (b"8923", b"4567"));
}

#[test]
fn vectored_calls_refuse_what_linux_refuses() {
    let (_kernel, p) = world();
    write(&p, "/f", b"text");
    let reader = p.open("/f", READ, 0).unwrap();
    let writer = p.open("/f", OpenFlags::WRONLY, 0).unwrap();
    let dir = p.open("/", READ, 0).unwrap();
    let many = vec![IoSlice::new(b"x"); 1025];
    fails! {
        p.writev(writer, &many) => INVAL,
        p.writev(reader, &many[..1]) => BADF,
        p.pwritev(writer, &many[..1], u64::MAX) => INVAL,
        p.readv(writer, &mut []) => BADF,
        p.readv(dir, &mut []) => ISDIR,
        p.preadv(reader, &mut [], u64::MAX) => INVAL,
    }
    assert_eq!(p.writev(writer, &many[..1024]).unwrap(), 1024);
}
