//! Extended attributes: namespaces, permissions, limits.

use super::{fails, touch, user, world};
use folio::syscall::AT_FDCWD;
use folio::vfs::{DeviceNumber, FileType, XattrFlags};

#[test]
fn names_and_limits() {
    let (_kernel, p) = world();
    touch(&p, "/f", 0o644);
    p.symlink("f", "/l").unwrap();
    p.mknodat(
        AT_FDCWD,
        "/fifo",
        FileType::Fifo,
        0o644,
        DeviceNumber::default(),
    )
    .unwrap();
    let none = XattrFlags::empty();
    let set = |name: &[u8], flags| p.setxattr("/f", name, b"v", flags);
    let long = [b"user.".as_slice(), &[b'a'; 251]].concat();
    fails! {
        p.getxattr("/f", b"user.a") => NODATA,
        set(b"user.a", XattrFlags::REPLACE) => NODATA,
        set(b"user.a", XattrFlags::REPLACE | XattrFlags::CREATE) => NODATA,
        set(b"", none) => RANGE,
        set(&long, none) => RANGE,
        set(b"user.", none) => INVAL,
        set(b"trusted.", none) => INVAL,
        set(b"other.a", none) => OPNOTSUPP,
        set(b"system.a", none) => OPNOTSUPP,
        p.getxattr("/f", b"other.a") => OPNOTSUPP,
        p.setxattr("/f", b"user.a", &[0; 65537], none) => TOOBIG,
        p.lsetxattr("/l", b"user.a", b"v", none) => PERM,
        p.lgetxattr("/l", b"user.a") => NODATA,
        p.setxattr("/fifo", b"user.a", b"v", none) => PERM,
        p.removexattr("/f", b"user.a") => NODATA,
        p.setxattr("/none", b"user.a", b"v", none) => NOENT,
        p.setxattr("/f", b"system.posix_acl_default", b"v", none) => ACCESS,
    }
    set(&long[..255], none).unwrap();
    p.removexattr("/f", &long[..255]).unwrap();
    set(b"user.a", XattrFlags::CREATE).unwrap();
    p.setxattr("/l", b"user.b", &[7; 65536], none).unwrap();
    p.lsetxattr("/l", b"trusted.c", b"", none).unwrap();
    fails! { set(b"user.a", XattrFlags::CREATE) => EXIST }
    assert_eq!(p.getxattr("/l", b"user.a").unwrap(), b"v");
    assert_eq!(p.getxattr("/f", b"user.b").unwrap(), [7; 65536]);
    assert_eq!(p.listxattr("/l").unwrap(), [b"user.a", b"user.b"]);
    assert_eq!(p.llistxattr("/l").unwrap(), [b"trusted.c"]);
    p.lremovexattr("/l", b"trusted.c").unwrap();
    assert!(p.llistxattr("/l").unwrap().is_empty());
}

#[test]
fn permissions() {
    let (kernel, p) = world();
    touch(&p, "/f", 0o644);
    p.mkdir("/sticky", 0o1777).unwrap();
    let none = XattrFlags::empty();
    for name in [b"user.a".as_slice(), b"trusted.a", b"security.a"] {
        p.setxattr("/f", name, b"v", none).unwrap();
    }
    let other = user(&kernel, 5, 5, &[]);
    assert_eq!(other.getxattr("/f", b"user.a").unwrap(), b"v");
    assert_eq!(other.getxattr("/f", b"security.a").unwrap(), b"v");
    assert_eq!(
        other.listxattr("/f").unwrap(),
        [b"security.a".as_slice(), b"user.a"]
    );
    fails! {
        other.getxattr("/f", b"trusted.a") => NODATA,
        other.setxattr("/f", b"user.a", b"v", none) => ACCESS,
        other.setxattr("/f", b"trusted.a", b"v", none) => PERM,
        other.setxattr("/f", b"security.a", b"v", none) => PERM,
        other.setxattr("/sticky", b"user.a", b"v", none) => PERM,
        other.setxattr("/f", b"system.posix_acl_access", b"v", none) => PERM,
        other.removexattr("/f", b"user.a") => ACCESS,
    }
    p.chmod("/f", 0o600).unwrap();
    fails! { other.getxattr("/f", b"user.a") => ACCESS }
}
