//! Compression: recognized by its first bytes on input, chosen by name on output.

use flate2::bufread::GzDecoder;
use folio::Error;
use std::io::{self, BufRead, BufReader, Read, Write};

/// Bytes that decide the compression.
const MAGIC_BYTES: usize = 6;
/// Memory for decoding xz, in KiB: the dictionary of `xz -9` needs 65 MiB.
const XZ_MEMORY_KIB: u32 = 256 << 10;

/// A compression format of archives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// The archive itself.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// xz.
    Xz,
    /// bzip2.
    Bzip2,
}

impl Compression {
    /// Recognizes the format of a stream by its first bytes.
    pub fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A skippable frame, as pzstd and zstd:chunked write.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Self::Bzip2,
            _ => Self::None,
        }
    }

    /// Returns the format that the end of a file's name implies, as `tar --auto-compress`.
    pub fn of_name(name: &[u8]) -> Self {
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end.as_bytes()));
        if ends(&[".gz", ".tgz", ".taz"]) {
            Self::Gzip
        } else if ends(&[".zst", ".tzst"]) {
            Self::Zstd
        } else if ends(&[".xz", ".txz"]) {
            Self::Xz
        } else if ends(&[".bz2", ".tbz", ".tbz2", ".tz2"]) {
            Self::Bzip2
        } else {
            Self::None
        }
    }

    /// Returns the name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "uncompressed",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
            Self::Bzip2 => "bzip2",
        }
    }
}

/// Decompresses a stream in the format that its first bytes name.
///
/// # Errors
///
/// The input fails before its first bytes are read.
pub fn decoder(mut input: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let mut start = Vec::with_capacity(MAGIC_BYTES);
    (&mut input)
        .take(MAGIC_BYTES as u64)
        .read_to_end(&mut start)?;
    let format = Compression::of(&start);
    let input = io::Cursor::new(start).chain(input);
    let name = format.name();
    let buffered = |input| BufReader::with_capacity(256 << 10, input);
    let decoder: Box<dyn Read + Send> = match format {
        Compression::None => return Ok(Box::new(input)),
        Compression::Gzip => Box::new(GzipMembers(Some(GzDecoder::new(buffered(input))))),
        Compression::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(buffered(input))?),
        Compression::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(
            buffered(input),
            true,
            XZ_MEMORY_KIB,
        )),
        Compression::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(buffered(input))),
    };
    Ok(Box::new(Named { decoder, name }))
}

/// A decoder that adds the name of its format to failures.
struct Named<R> {
    decoder: R,
    name: &'static str,
}

impl<R: Read> Read for Named<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buf).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            io::ErrorKind::UnexpectedEof => io::Error::new(
                error.kind(),
                format!("truncated: the {} stream ends early", self.name),
            ),
            // The input failed, not its content.
            _ if error.raw_os_error().is_some() || is_error(&error) => error,
            kind => io::Error::new(kind, format!("damaged {} stream: {error}", self.name)),
        })
    }
}

fn is_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Error>())
}

/// A decoder of gzip members, one after another, with zeros behind the last one as on tapes.
struct GzipMembers<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.0 {
            let count = decoder.read(buf)?;
            if count > 0 || buf.is_empty() {
                return Ok(count);
            }
            let Some(mut input) = self.0.take().map(GzDecoder::into_inner) else {
                break;
            };
            let zeros = skip_zeros(&mut input)?;
            if !input.fill_buf()?.is_empty() {
                if zeros > 0 {
                    let kind = io::ErrorKind::InvalidData;
                    return Err(io::Error::new(kind, "bytes after the zeros behind its end"));
                }
                self.0 = Some(GzDecoder::new(input));
            }
        }
        Ok(0)
    }
}

/// Consumes zeros; returns their number.
fn skip_zeros(input: &mut impl BufRead) -> io::Result<u64> {
    let mut all = 0;
    loop {
        let bytes = input.fill_buf()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        input.consume(zeros);
        all += zeros as u64;
        if zeros == 0 {
            return Ok(all);
        }
    }
}

/// A compressing writer. [`Encoder::finish`] writes its end; a dropped one leaves a torn stream.
pub enum Encoder<W: Write> {
    /// Uncompressed.
    Plain(W),
    /// gzip.
    Gzip(flate2::write::GzEncoder<W>),
    /// Zstandard.
    Zstd(zstd::stream::write::Encoder<'static, W>),
    /// xz.
    Xz(Box<lzma_rust2::XzWriter<W>>),
    /// bzip2.
    Bzip2(bzip2::write::BzEncoder<W>),
}

impl<W: Write> Encoder<W> {
    /// Creates an encoder with the default level of the format's own program.
    ///
    /// # Errors
    ///
    /// The encoder cannot be set up.
    pub fn new(output: W, format: Compression) -> io::Result<Self> {
        Ok(match format {
            Compression::None => Self::Plain(output),
            // Neither a name nor a time in the header: equal input gives equal output.
            Compression::Gzip => Self::Gzip(flate2::write::GzEncoder::new(
                output,
                flate2::Compression::default(),
            )),
            Compression::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(output, 0)?;
                encoder.include_checksum(true)?;
                Self::Zstd(encoder)
            }
            Compression::Xz => Self::Xz(Box::new(lzma_rust2::XzWriter::new(
                output,
                lzma_rust2::XzOptions::with_preset(6),
            )?)),
            Compression::Bzip2 => Self::Bzip2(bzip2::write::BzEncoder::new(
                output,
                bzip2::Compression::best(),
            )),
        })
    }

    /// Writes the end of the stream; returns the output.
    ///
    /// # Errors
    ///
    /// The output fails.
    pub fn finish(self) -> io::Result<W> {
        match self {
            Self::Plain(output) => Ok(output),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
            Self::Xz(encoder) => encoder.finish(),
            Self::Bzip2(encoder) => encoder.finish(),
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Plain(output) => output,
            Self::Gzip(encoder) => encoder,
            Self::Zstd(encoder) => encoder,
            Self::Xz(encoder) => encoder,
            Self::Bzip2(encoder) => encoder,
        }
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Compression; 5] = [
        Compression::None,
        Compression::Gzip,
        Compression::Zstd,
        Compression::Xz,
        Compression::Bzip2,
    ];

    fn packed(bytes: &[u8], format: Compression) -> Vec<u8> {
        let mut encoder = Encoder::new(Vec::new(), format).unwrap();
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn every_format_is_recognized_and_read_back() {
        let bytes: Vec<u8> = (0..300_000_u32)
            .flat_map(|n| (n / 7).to_le_bytes())
            .collect();
        for format in ALL {
            let packed = packed(&bytes, format);
            assert_eq!(Compression::of(&packed), format);
            // Two streams in a row, as `cat a.gz b.gz`.
            let twice = [packed.clone(), packed.clone()].concat();
            let mut read = Vec::new();
            decoder(io::Cursor::new(twice))
                .unwrap()
                .read_to_end(&mut read)
                .unwrap();
            assert!(
                read == [bytes.clone(), bytes.clone()].concat(),
                "{format:?}"
            );
        }
    }

    #[test]
    fn zeros_behind_gzip_are_ignored() {
        let decode = |bytes: Vec<u8>| {
            let mut read = Vec::new();
            let mut decoder = decoder(io::Cursor::new(bytes))?;
            decoder.read_to_end(&mut read)?;
            Ok::<_, io::Error>(read)
        };
        let member = packed(b"text", Compression::Gzip);
        let zeros = vec![0; 600_000];
        let tape = [member.clone(), member.clone(), zeros.clone()].concat();
        assert_eq!(decode(tape).unwrap(), b"texttext");
        for end in [&b"x"[..], &member] {
            let error = decode([&member, &zeros, end].concat()).unwrap_err();
            assert!(error.to_string().contains("damaged gzip"), "{error}");
        }
        let error = decode([&member[..], b"x"].concat()).unwrap_err();
        assert!(error.to_string().contains("gzip"), "{error}");
    }

    #[test]
    fn truncated_stream_is_reported_with_its_format() {
        let bytes: Vec<u8> = (0..99_999_u32).flat_map(u32::to_le_bytes).collect();
        for format in &ALL[1..] {
            let packed = packed(&bytes, *format);
            let cut = packed[..packed.len() / 2].to_vec();
            let mut read = Vec::new();
            let error = decoder(io::Cursor::new(cut))
                .unwrap()
                .read_to_end(&mut read)
                .unwrap_err();
            let text = error.to_string();
            assert!(text.contains(format.name()), "{format:?}: {text}");
        }
    }
}
