//! Sizes in text, as qemu-img prints them.

/// Formats a size as `1.5 MiB`, with three digits like qemu-img.
pub(crate) fn human(bytes: u64) -> String {
    let (mut size, mut unit) = (bytes as f64, 0);
    while size >= 1000.0 && unit < 6 {
        size /= 1024.0;
        unit += 1;
    }
    let decimals = if size >= 100.0 {
        0
    } else if size >= 10.0 {
        1
    } else if size >= 1.0 {
        2
    } else {
        3
    };
    let mut text = format!("{size:.decimals$}");
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    format!("{text} {}B", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_sizes_match_qemu_img() {
        let shown = [0, 512, 200_704, 1 << 20, 1_610_612_736, 1023 << 20].map(human);
        assert_eq!(
            shown,
            ["0 B", "512 B", "196 KiB", "1 MiB", "1.5 GiB", "0.999 GiB"].map(String::from)
        );
    }
}
