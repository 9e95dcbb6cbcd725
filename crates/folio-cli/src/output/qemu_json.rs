//! JSON in the layout of qemu-img, for scripts that search it as text: four spaces, ASCII, and
//! members in the order of its hash table.

use serde_json::Value;

/// The members in the order in which qemu-img prints them. Members without a place follow.
const ORDER: [&str; 53] = [
    "compat",
    "icount",
    "flags",
    "vm-clock-nsec",
    "image-end-offset",
    "name",
    "compressed-clusters",
    "compression-type",
    "compressed",
    "cid",
    "lazy-refcounts",
    "date-sec",
    "bitmaps",
    "refcount-bits",
    "parent-cid",
    "disk-size",
    "is-extent-compressed",
    "total-clusters",
    "corruptions",
    "data-file",
    "corruptions-fixed",
    "check-errors",
    "backing-filename-format",
    "date-nsec",
    "granularity",
    "required",
    "leaks",
    "create-type",
    "snapshots",
    "leaks-fixed",
    "allocated-clusters",
    "virtual-size",
    "filename",
    "cluster-size",
    "fully-allocated",
    "format",
    "encrypt",
    "actual-size",
    "data-file-raw",
    "format-specific",
    "full-backing-filename",
    "vm-clock-sec",
    "encrypted",
    "type",
    "extents",
    "backing-filename",
    "corrupt",
    "fragmented-clusters",
    "id",
    "vm-state-size",
    "dirty-flag",
    "extended-l2",
    "data",
];

/// Formats a value, and ends it with a newline.
pub(crate) fn qemu_json(value: &Value) -> String {
    let mut text = String::new();
    put(&mut text, value, 0);
    text.push('\n');
    text
}

fn put(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(members) => {
            let place = |key: &str| ORDER.iter().position(|known| *known == key);
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(key, _)| place(key).unwrap_or(ORDER.len()));
            let put_member = |text: &mut String, (key, value): (&String, &Value)| {
                text.push_str(&format!("{}: ", string(key)));
                put(text, value, depth + 1);
            };
            put_all(text, "{}", depth, members, put_member);
        }
        Value::Array(values) => {
            put_all(text, "[]", depth, values, |text, value| {
                put(text, value, depth + 1);
            });
        }
        Value::String(value) => text.push_str(&string(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => text.push_str(&value.to_string()),
    }
}

fn put_all<T>(
    text: &mut String,
    brackets: &str,
    depth: usize,
    items: impl IntoIterator<Item = T>,
    mut put_item: impl FnMut(&mut String, T),
) {
    text.push_str(&brackets[..1]);
    for (index, item) in items.into_iter().enumerate() {
        text.push_str(if index > 0 { ",\n" } else { "\n" });
        text.push_str(&"    ".repeat(depth + 1));
        put_item(text, item);
    }
    text.push('\n');
    text.push_str(&"    ".repeat(depth));
    text.push_str(&brackets[1..]);
}

fn string(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    let mut units = [0; 2];
    let mut ascii = String::new();
    for letter in quoted.chars() {
        if letter.is_ascii() {
            ascii.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut units) {
            ascii.push_str(&format!("\\u{unit:04X}"));
        }
    }
    ascii
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn members_have_the_order_of_qemu_img() {
        let value = json!({ "format": "qcow2", "other": [], "virtual-size": 1, "name": "\u{e4}" });
        let want = "{\n    \"name\": \"\\u00E4\",\n    \"virtual-size\": 1,\n    \
                    \"format\": \"qcow2\",\n    \"other\": [\n    ]\n}\n";
        assert_eq!(qemu_json(&value), want);
    }
}
