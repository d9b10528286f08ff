//! The element types that a safetensors file may hold here.

macro_rules! dtypes {
    ($($variant:ident $name:literal $bytes:literal),+ $(,)?) => {
        /// The element types that a file may hold.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // each variant is its own name
        pub enum Dtype { $($variant),+ }

        impl Dtype {
            /// Every dtype with its name in the file.
            pub const ALL: &[(Dtype, &'static str)] = &[$((Dtype::$variant, $name)),+];

            /// The name in the file.
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name),+ }
            }

            /// Bytes of one element.
            pub fn size_bytes(self) -> u64 {
                match self { $(Dtype::$variant => $bytes),+ }
            }
        }
    };
}

dtypes! {
    F32 "F32" 4, F16 "F16" 2, Bf16 "BF16" 2,
    U32 "U32" 4, I32 "I32" 4, U8 "U8" 1, I8 "I8" 1, U16 "U16" 2, I16 "I16" 2, I64 "I64" 8, U64 "U64" 8,
    Bool "BOOL" 1, F8E4m3 "F8_E4M3" 1,
}

impl Dtype {
    /// The dtype of that name.
    pub(super) fn parse(name: &str) -> Option<Dtype> {
        Dtype::ALL.iter().find(|(_, known)| *known == name).map(|(dtype, _)| *dtype)
    }

    /// All names, for errors.
    pub(super) fn names() -> String {
        Dtype::ALL.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
    }
}
