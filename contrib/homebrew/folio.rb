# No release exists yet. In a clone, these commands make the source and install it:
#   git archive --prefix=folio-0.1.0/ --output=/tmp/folio-0.1.0.tar.gz HEAD
#   brew tap-new local/folio
#   cp contrib/homebrew/folio.rb "$(brew --repository local/folio)/Formula/"
#   brew install local/folio/folio
class Folio < Formula
  desc "Disk images and page caches from the command-line, without root"
  url "file:///tmp/folio-0.1.0.tar.gz"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on "cargo-c" => :build
  depends_on "rust" => :build
  depends_on arch: :x86_64
  depends_on :linux

  def install
    dist = ["--profile", "dist"]
    system "cargo", "install", *std_cargo_args(path: "crates/folio-cli", features: "full"), *dist
    system "cargo", "install", *std_cargo_args(path: "crates/folio-bench", features: "object-store"), *dist
    system "cargo", "cinstall", "--locked", "--package", "folio-c", "--prefix", prefix, "--libdir", lib, *dist
    system bin/"folio", "man", "--dir", man1
    generate_completions_from_executable(bin/"folio", "completions")
  end

  test do
    (testpath/"tree/file").write "text"
    system bin/"folio", "cp", "-a", "--create", "64M", "tree", "disk.qcow2:/"
    assert_equal "text", shell_output("#{bin}/folio cat disk.qcow2:/tree/file")
    assert_match version.to_s, shell_output("#{bin}/folio --version")
  end
end
