//! The macro that makes the struct and the table from one list of rows.

/// For each row
///
/// ```text
/// /// What it is, for code and wire.ts.
/// key: Type = default => { kind: …, section: …, scopes: …, rereads: …, }
/// ```
///
/// makes a field of `Settings` and a [`SettingRow`](super::SettingRow) of `TABLE`. `default` may
/// use the variable that is named between the bars, a [`Machine`](super::table::Machine).
macro_rules! settings {
    (
        |$machine:ident|
        $( $(#[$attribute:meta])* $key:ident: $type:ty = $default:expr => { $($row:tt)* } )*
    ) => {
        /// A value for every setting.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
        pub struct Settings {
            $( $(#[$attribute])* pub $key: $type, )*
        }

        /// One row for each field of [`Settings`], in the order in which they are shown.
        pub const TABLE: &[SettingRow] = &[
            $( SettingRow {
                key: stringify!($key),
                text_key: concat!("settings.rows.", stringify!($key)),
                $($row)*
            }, )*
        ];

        impl Settings {
            /// The settings of someone who has changed nothing.
            pub(crate) fn defaults($machine: &Machine) -> Settings {
                Settings { $( $key: $default, )* }
            }

            /// Sets one value, unless its row refuses it.
            pub(crate) fn set(&mut self, key: &str, value: &Value) -> Result<(), String> {
                row(key)?.check(value)?;
                let unreadable = |error| format!("{key} cannot be {value}: {error}.");
                match key {
                    $( stringify!($key) => {
                        self.$key = serde_json::from_value(value.clone()).map_err(unreadable)?;
                    } )*
                    _ => return Err(unknown(key)),
                }
                Ok(())
            }
        }
    };
}

pub(super) use settings;
