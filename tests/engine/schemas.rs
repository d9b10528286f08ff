//! Schemas in the shapes that public test suites and programs have: a list by hand, and as many more as
//! asked for, made from a seed. Their strings, lists and objects are bounded, so that answers end.

use serde_json::{Map, Value, json};

/// An object with these properties and no others.
pub fn object(properties: Value) -> Value {
    let names: Vec<&String> = properties.as_object().expect("an object").keys().collect();
    json!({
        "type": "object", "properties": properties, "required": names,
        "additionalProperties": false,
    })
}

fn short() -> Value {
    json!({ "type": "string", "maxLength": 8 })
}

fn number() -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": 99 })
}

/// A person, for tests that need any object.
pub fn people() -> Value {
    let person = object(json!({ "name": short(), "age": number() }));
    object(json!({ "people": { "type": "array", "items": person, "maxItems": 2 } }))
}

/// Schemas by hand, each for one shape.
pub fn written() -> Vec<Value> {
    [scalars(), lists(), objects(), combinations(), references()].concat()
}

fn scalars() -> Vec<Value> {
    vec![
        json!({ "type": "boolean" }),
        json!({ "type": "null" }),
        json!({ "type": "integer", "minimum": -3, "maximum": 12 }),
        json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        json!({ "type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2.25 }),
        json!({ "type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 20 }),
        json!({ "type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100 }),
        json!({ "enum": ["red", "green", 3, null, true] }),
        json!({ "enum": [[1, 2], { "a": "b" }, "\u{1f600}", "quote \" and \\"] }),
        json!({ "const": { "a": [1, "é"] } }),
        short(),
        json!({ "type": "string", "minLength": 2, "maxLength": 5 }),
        json!({ "type": "string", "pattern": "^[a-c]{2,4}$" }),
        json!({ "type": "string", "pattern": "^(\\+49|0)[0-9]{3,6}$" }),
        json!({ "type": "string", "pattern": "^\\d{4}-(0[1-9]|1[0-2])$" }),
        json!({ "type": "string", "pattern": "^(?:[A-Z][a-z]{0,3} ?){1,2}$" }),
        json!({ "type": "string", "format": "date" }),
        json!({ "type": "string", "format": "time" }),
        json!({ "type": "string", "format": "date-time" }),
        json!({ "type": "string", "format": "uuid" }),
        json!({ "type": "string", "format": "ipv4" }),
        json!({ "type": ["string", "null"], "maxLength": 6 }),
        json!({ "type": ["integer", "boolean"], "minimum": 0, "maximum": 9 }),
    ]
}

fn lists() -> Vec<Value> {
    vec![
        json!({ "type": "array", "items": number(), "maxItems": 4 }),
        json!({ "type": "array", "items": short(), "minItems": 2, "maxItems": 3 }),
        json!({ "type": "array", "prefixItems": [number(), { "type": "boolean" }],
            "items": false, "minItems": 2 }),
        json!({ "type": "array", "prefixItems": [{ "const": "point" }], "minItems": 3,
            "items": number(), "maxItems": 3 }),
        json!({ "type": "array", "maxItems": 2,
            "items": { "type": "array", "items": number(), "maxItems": 2 } }),
        json!({ "type": "array", "maxItems": 0 }),
    ]
}

fn objects() -> Vec<Value> {
    let person = object(json!({ "name": short(), "age": number() }));
    vec![
        object(json!({})),
        person.clone(),
        object(json!({ "person": person, "ok": { "type": "boolean" } })),
        people(),
        object(json!({ "a": object(json!({ "b": object(json!({ "c": { "type": "null" } })) })) })),
        object(json!({ "größe": number(), "名前": short(), "a \"b\"\n": { "const": 1 } })),
        json!({ "type": "object", "properties": { "a": number(), "b": short() },
            "required": ["b"], "additionalProperties": false }),
        json!({ "type": "object", "properties": { "a": number() }, "required": ["a"],
            "maxProperties": 2, "additionalProperties": { "type": "boolean" } }),
        object(json!({ "kind": { "enum": ["circle", "square"] }, "size": number() })),
        json!({ "type": "object", "patternProperties": { "^x": { "type": "integer" } },
            "additionalProperties": false, "maxProperties": 2 }),
        json!({ "type": "object", "additionalProperties": number(), "minProperties": 1,
            "maxProperties": 2 }),
        json!({ "type": "object" }),
    ]
}

fn combinations() -> Vec<Value> {
    let both = json!({ "allOf": [
        { "type": "object", "properties": { "a": number() }, "required": ["a"] },
        { "properties": { "b": { "type": "boolean" } }, "required": ["b"] },
    ], "additionalProperties": false, "properties": { "a": true, "b": true } });
    vec![
        json!({ "anyOf": [number(), { "type": "string", "enum": ["none"] }] }),
        json!({ "anyOf": [
            object(json!({ "type": { "const": "a" }, "x": number() })),
            object(json!({ "type": { "const": "b" }, "y": short() })),
        ] }),
        json!({ "oneOf": [{ "type": "boolean" }, { "type": "null" }] }),
        json!({ "oneOf": [
            object(json!({ "kind": { "const": "one" }, "n": number() })),
            object(json!({ "kind": { "const": "two" }, "s": short() })),
        ] }),
        json!({ "allOf": [{ "type": "integer", "minimum": 5 }, { "maximum": 15 }] }),
        both,
    ]
}

fn references() -> Vec<Value> {
    let tree = object(json!({
        "value": number(), "rest": { "anyOf": [{ "$ref": "#/$defs/tree" }, { "type": "null" }] },
    }));
    let nested = json!({ "type": "array", "maxItems": 2, "items": { "$ref": "#" } });
    vec![
        json!({ "$defs": { "n": number() }, "type": "array", "items": { "$ref": "#/$defs/n" },
            "minItems": 1, "maxItems": 3 }),
        json!({ "$ref": "#/$defs/tree", "$defs": { "tree": tree } }),
        json!({ "definitions": { "s": short() },
            "anyOf": [{ "$ref": "#/definitions/s" }, { "type": "null" }] }),
        nested,
    ]
}

/// Keywords that no grammar is known for. A schema with one of them is refused by its name.
pub const REFUSED: [&str; 5] = ["contains", "not", "if", "dependentRequired", "minContains"];

/// As many schemas as asked for, the same for the same seed.
pub fn generated(seed: u64, count: usize) -> Vec<Value> {
    let mut maker = Maker { state: seed };
    (0..count).map(|index| maker.document(index)).collect()
}

/// Makes schemas at random.
struct Maker {
    state: u64,
}

impl Maker {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// A whole schema. Some have definitions, some a keyword that is refused.
    fn document(&mut self, index: usize) -> Value {
        let mut schema = match index % 8 {
            0..4 => self.schema(3),
            4 => return self.with_definitions(),
            5 => return self.recursive(),
            6 => self.object(2),
            _ => self.list(2),
        };
        let fields = schema.as_object_mut().expect("an object");
        if self.below(4) == 0 {
            fields.insert("title".to_owned(), "Something".into());
            fields.insert("description".to_owned(), "What it is.".into());
        }
        if index % 20 == 19 {
            let name = self.pick(&REFUSED);
            let value = match name {
                "minContains" => json!(1),
                "dependentRequired" => json!({ "a": ["b"] }),
                _ => json!({ "type": "string" }),
            };
            fields.insert(name.to_owned(), value);
        }
        schema
    }

    fn schema(&mut self, depth: usize) -> Value {
        if depth == 0 {
            return self.scalar();
        }
        match self.below(8) {
            0 | 1 => self.object(depth - 1),
            2 => self.list(depth - 1),
            3 => self.one_of_tagged(depth - 1),
            4 => json!({ "anyOf": [self.scalar(), self.object(depth - 1)] }),
            5 => json!({ "anyOf": [self.schema(depth - 1), { "type": "null" }] }),
            6 => self.all_of(),
            _ => self.scalar(),
        }
    }

    fn scalar(&mut self) -> Value {
        match self.below(9) {
            0 => self.integer(),
            1 => self.real(),
            2 | 3 => self.text(),
            4 => self.choice(),
            5 => json!({ "const": self.constant() }),
            6 => self.pick(&scalars()),
            7 => json!({ "type": ["string", "null"], "maxLength": 1 + self.below(6) }),
            _ => json!({ "type": "boolean" }),
        }
    }

    fn integer(&mut self) -> Value {
        let low = self.below(400) as i64 - 200;
        let high = low + self.below(500) as i64;
        match self.below(3) {
            0 => json!({ "type": "integer", "minimum": low, "maximum": high }),
            1 => {
                json!({ "type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high + 2 })
            }
            _ => json!({ "type": "integer", "minimum": low, "maximum": high + 7,
                "multipleOf": self.pick(&[2, 3, 5, 7]) }),
        }
    }

    fn real(&mut self) -> Value {
        let low = (self.below(4000) as f64 - 2000.0) / 8.0;
        let high = low + self.below(800) as f64 / 16.0;
        match self.below(2) {
            0 => json!({ "type": "number", "minimum": low, "maximum": high }),
            _ => json!({ "type": "number", "exclusiveMinimum": low, "maximum": high + 0.5 }),
        }
    }

    fn text(&mut self) -> Value {
        let patterns = [
            "^[a-z]{1,5}$",
            "^[A-Z]{2}-[0-9]{1,3}$",
            "^(yes|no|maybe)$",
            "^#[0-9a-f]{6}$",
            "^[^\\s]{1,4}$",
            "^\\w{1,3}(\\.\\w{1,3}){0,2}$",
            "^[äöü]{1,2}x?$",
            "^$|^[0-9]$",
        ];
        match self.below(4) {
            0 => json!({ "type": "string", "pattern": self.pick(&patterns) }),
            1 => {
                let format = self.pick(&["date", "time", "date-time", "uuid", "ipv4"]);
                json!({ "type": "string", "format": format })
            }
            _ => {
                let least = self.below(4);
                json!({ "type": "string", "minLength": least, "maxLength": least + self.below(6) })
            }
        }
    }

    fn choice(&mut self) -> Value {
        let values = ["a", "b c", "é", "\u{1f600}", "tab\t", "\"", "long word", ""];
        let mut chosen: Vec<Value> = Vec::new();
        for _ in 0..1 + self.below(4) {
            let value = match self.below(4) {
                0 => json!(self.below(1000)),
                1 => self.constant(),
                _ => json!(self.pick(&values)),
            };
            if !chosen.contains(&value) {
                chosen.push(value);
            }
        }
        json!({ "enum": chosen })
    }

    fn constant(&mut self) -> Value {
        let number = self.below(50);
        self.pick(&[
            json!(null),
            json!(false),
            json!(number),
            json!(-1.5),
            json!("x"),
            json!([number, "y"]),
            json!({ "k": number, "l": [] }),
        ])
    }

    fn list(&mut self, depth: usize) -> Value {
        let (least, more) = (self.below(2), self.below(3));
        match self.below(3) {
            0 => {
                let tuple: Vec<Value> =
                    (0..1 + self.below(3)).map(|_| self.schema(depth)).collect();
                json!({ "type": "array", "minItems": tuple.len(), "prefixItems": tuple,
                    "items": false })
            }
            1 => {
                let rest = self.scalar();
                json!({ "type": "array", "prefixItems": [self.scalar()], "items": rest,
                    "minItems": least, "maxItems": 1 + more })
            }
            _ => json!({ "type": "array", "items": self.schema(depth), "minItems": least,
                "maxItems": least + more }),
        }
    }

    fn object(&mut self, depth: usize) -> Value {
        let names = ["id", "name", "größe", "名前", "a b", "x-1", "$id", "it's", "q\"", "type"];
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for _ in 0..1 + self.below(4) {
            let name = self.pick(&names);
            if !properties.contains_key(name) {
                properties.insert(name.to_owned(), self.schema(depth));
                if self.below(3) > 0 {
                    required.push(name.to_owned());
                }
            }
        }
        let (num_properties, form) = (properties.len(), self.below(6));
        if form < 2 {
            // A limit of properties is refused where some of those with names are optional.
            required = properties.keys().cloned().collect();
        }
        let mut schema =
            json!({ "type": "object", "properties": properties, "required": required });
        match form {
            0 => {
                schema["additionalProperties"] = self.scalar();
                schema["maxProperties"] = json!(num_properties + 1);
            }
            1 => {
                schema["patternProperties"] = json!({ "^z[0-9]$": self.scalar() });
                schema["additionalProperties"] = json!(false);
                schema["maxProperties"] = json!(num_properties + 1);
            }
            _ => schema["additionalProperties"] = json!(false),
        }
        schema
    }

    fn one_of_tagged(&mut self, depth: usize) -> Value {
        let keyword = self.pick(&["oneOf", "anyOf"]);
        let branches: Vec<Value> = (0..2 + self.below(2))
            .map(|tag| {
                let tag = json!({ "const": format!("t{tag}") });
                object(json!({ "tag": tag, "value": self.schema(depth.min(1)) }))
            })
            .collect();
        json!({ keyword: branches })
    }

    fn all_of(&mut self) -> Value {
        let (first, second) = (self.scalar(), self.scalar());
        match self.below(2) {
            0 => json!({ "allOf": [
                { "type": "object", "properties": { "a": first }, "required": ["a"] },
                { "type": "object", "properties": { "b": second }, "required": ["b"] },
            ], "properties": { "a": true, "b": true }, "additionalProperties": false }),
            _ => {
                let low = self.below(30);
                json!({ "allOf": [
                    { "type": "integer", "minimum": low }, { "maximum": low + self.below(90) },
                ] })
            }
        }
    }

    fn with_definitions(&mut self) -> Value {
        let place = self.pick(&["$defs", "definitions"]);
        let reference = |name: &str| json!({ "$ref": format!("#/{place}/{name}") });
        let item = self.schema(1);
        let pair = object(json!({ "first": reference("item"), "second": reference("item") }));
        let mut schema = match self.below(3) {
            0 => object(json!({ "pair": reference("pair"), "n": self.integer() })),
            1 => json!({ "type": "array", "items": reference("item"), "maxItems": 2 }),
            _ => json!({ "anyOf": [reference("item"), reference("pair")] }),
        };
        schema[place] = json!({ "item": item, "pair": pair });
        schema
    }

    fn recursive(&mut self) -> Value {
        let value = self.scalar();
        let next = json!({ "$ref": "#/$defs/node" });
        let node = match self.below(3) {
            0 => object(json!({ "v": value, "next": { "anyOf": [{ "type": "null" }, next] } })),
            1 => json!({ "type": "object", "properties": { "v": value, "next": next },
                "required": ["v"], "additionalProperties": false }),
            _ => object(json!({ "v": value,
                "all": { "type": "array", "items": next, "maxItems": 1 } })),
        };
        json!({ "$ref": "#/$defs/node", "$defs": { "node": node } })
    }
}
