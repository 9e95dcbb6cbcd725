# In a clone:
#   nix-build -E '(import <nixpkgs> { }).callPackage ./contrib/nix/package.nix { }'
{
  lib,
  stdenv,
  rust,
  rustPlatform,
  cargo-c,
  coreutils,
  installShellFiles,
}:

let
  libfolio = "--profile dist --frozen --package folio-c --prefix ${placeholder "out"} --target ${stdenv.hostPlatform.rust.rustcTarget}";
in
rustPlatform.buildRustPackage {
  pname = "folio";
  version = "0.1.0";

  src = lib.fileset.toSource {
    root = ../..;
    fileset = lib.fileset.gitTracked ../..;
  };
  cargoLock.lockFile = ../../Cargo.lock;

  nativeBuildInputs = [
    cargo-c
    installShellFiles
  ];

  buildType = "dist";
  cargoBuildFlags = [
    "--package=folio-cli"
    "--package=folio-bench"
  ];
  buildFeatures = [
    "folio-cli/full"
    "folio-bench/object-store"
  ];
  # cargo xtask test runs the tests: they need FUSE, loop devices and many programs.
  doCheck = false;

  postBuild = ''
    ${rust.envVars.setEnv} cargo cbuild ${libfolio}
  '';

  postInstall = ''
    ${rust.envVars.setEnv} cargo cinstall ${libfolio}
    $out/bin/folio man --dir $out/share/man/man1
    installShellCompletion --cmd folio \
      --bash <($out/bin/folio completions bash) \
      --fish <($out/bin/folio completions fish) \
      --zsh <($out/bin/folio completions zsh)
    install -D -m 644 -t $out/lib/systemd/system contrib/systemd/*.service
    substituteInPlace $out/lib/systemd/system/*.service \
      --replace-quiet /usr/bin/folio $out/bin/folio \
      --replace-quiet /bin/true ${coreutils}/bin/true
    # The mount(8) of NixOS looks for helpers in bin.
    ln -s folio $out/bin/mount.fuse.folio
    ln -s folio $out/bin/mount.fuseblk.folio
  '';

  meta = {
    description = "Disk images and page caches from the command line, without root";
    license = with lib.licenses; [
      mit
      asl20
    ];
    mainProgram = "folio";
    platforms = [ "x86_64-linux" ];
  };
}
