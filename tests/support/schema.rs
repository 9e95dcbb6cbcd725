//! The schemas of docs/schema, derived from the types that the commands print.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::path::Path;

/// The variable that makes the tests write the files.
const WRITES: &str = "FOLIO_WRITE_SCHEMAS";

/// Asserts that docs/schema has the schema of `T` as the output of `folio WORDS --json`.
#[track_caller]
pub(crate) fn assert_schema_of<T: JsonSchema>(words: &str) {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    simplify(&mut schema);
    schema["title"] = format!("folio {words} --json").into();
    let derived = format!("{schema:#}\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/schema")
        .join(format!("{}.json", words.replace(' ', "-")));
    if std::env::var_os(WRITES).is_some() {
        std::fs::write(&path, &derived).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        derived == found,
        "{} is stale: run this test with {WRITES}=1",
        path.display()
    );
}

/// Leaves out the widths of numbers, the null of keys that are absent instead, and line breaks. A
/// fraction is not negative, unless its format is `signed`.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            // A property may have the name of a keyword.
            if keys.get("format").is_some_and(Value::is_string)
                && keys.remove("format") == Some("double".into())
            {
                keys.entry("minimum").or_insert(0.into());
            }
            if let Some(Value::String(text)) = keys.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            simplify_properties(keys);
            keys.values_mut().for_each(simplify);
        }
        Value::Array(values) => values.iter_mut().for_each(simplify),
        _ => {}
    }
}

/// Removes null from the types of keys that are not required, and from alternatives the type that
/// the object has already.
fn simplify_properties(object: &mut Map<String, Value>) {
    let required = object.get("required").cloned().unwrap_or_default();
    let required = required.as_array().cloned().unwrap_or_default();
    let Some(Value::Object(properties)) = object.get_mut("properties") else {
        return;
    };
    for (_, property) in properties
        .iter_mut()
        .filter(|(key, _)| !required.contains(&json!(key)))
    {
        if property["type"][1] == "null" {
            property["type"] = property["type"][0].take();
        }
        let keys = property.as_object_mut().unwrap();
        if let Some(Value::Object(some)) = keys.remove("anyOf").map(|mut either| either[0].take()) {
            keys.extend(some);
        }
    }
    if let Some(Value::Array(alternatives)) = object.get_mut("oneOf") {
        for keys in alternatives.iter_mut().filter_map(Value::as_object_mut) {
            keys.remove("type");
        }
    }
}
