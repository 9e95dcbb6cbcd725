"""File systems other than ext4, made by their own programs."""

import shutil
import subprocess
from pathlib import Path

import foliofs
import pytest

PROGRAMS = {
    "ext4": "mke2fs -q -t ext4 -d {tree} {image} 16M",
    "fat": "truncate -s 16M {image} && mkfs.vfat {image} && mcopy -s -i {image} {tree}/* ::/",
    "squashfs": "mksquashfs {tree} {image} -quiet -no-progress",
    "erofs": "mkfs.erofs {image} {tree}",
}


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("format", ["raw", "qcow2"])
@pytest.mark.parametrize("partition", [False, True])
def test_file_system_is_read(tmp_path: Path, kind: str, format: str, partition: bool) -> None:
    words = PROGRAMS[kind]
    programs = [*words.split(" && "), "sfdisk", "qemu-img"]
    missing = [name for name in (words.split()[0] for words in programs) if not shutil.which(name)]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    tree = tmp_path / "tree"
    (tree / "folder").mkdir(parents=True)
    (tree / "hello").write_text("Hello, image!\n")
    image = tmp_path / "disk.img"
    sh(words.format(tree=tree, image=image))
    if partition:
        disk = tmp_path / "partition.img"
        sh(
            f"truncate -s 20M {disk} && printf 'label: gpt\nstart=1MiB\n' | sfdisk -q {disk}"
            f" && dd if={image} of={disk} bs=1M seek=1 conv=notrunc"
        )
        image = disk
    if format == "qcow2":
        sh(f"qemu-img convert -O qcow2 {image} {image}.qcow2")
        image = tmp_path / f"{image.name}.qcow2"
    with foliofs.open_image(image, "r") as fs:
        assert set(fs.listdir("/")) - {"lost+found"} == {"folder", "hello"}
        assert fs.path("/hello").read_text() == "Hello, image!\n"


def sh(words: str) -> None:
    subprocess.run(["sh", "-c", words], check=True, capture_output=True)
