//! Base64, as tar archives and device tables have it in extended attributes.

/// Decodes base64; libarchive omits the padding.
pub(crate) fn base64_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.iter().filter(|letter| !matches!(letter, b'=' | b'\n')) {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    // One letter alone has less than a byte.
    (count < 6).then_some(bytes)
}
