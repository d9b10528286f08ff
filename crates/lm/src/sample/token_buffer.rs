//! The tokens of one request as an array on the device.

use mlx_rs::{Array, Dtype, ops};

use crate::{LmError, ffi};

/// The token ids of the prompt and of the answer so far.
///
/// The decode pipeline appends tokens that the device has not computed yet, so nothing here reads a
/// token back. The buffer grows by 256 tokens at a time and is written in place; otherwise an
/// answer of n tokens would copy n² of them.
#[derive(Debug, Clone)]
pub struct TokenBuffer {
    /// `[1, capacity]` u32; zeros from `len` on.
    ids: Array,
    len: i32,
}

const STEP: usize = 256;

impl TokenBuffer {
    /// A buffer that holds `tokens`.
    pub fn from_tokens(tokens: &[u32]) -> Self {
        let mut ids = tokens.to_vec();
        ids.resize((tokens.len() / STEP + 1) * STEP, 0);
        TokenBuffer {
            ids: Array::from_slice(&ids, &[1, ids.len() as i32]),
            len: tokens.len() as i32,
        }
    }

    /// Appends `token`, an array of one id, without waiting for it.
    pub fn append(&mut self, token: &Array) -> Result<(), LmError> {
        if self.len == self.ids.dim(1) {
            let room = ops::zeros_dtype(&[1, STEP as i32], Dtype::Uint32)?;
            self.ids = ops::concatenate(&[&self.ids, &room], 1)?;
        }
        let token = ops::reshape(token, &[1, 1])?;
        self.ids = ffi::slice_update(&self.ids, &token, &[0, self.len], &[1, self.len + 1])?;
        self.len += 1;
        Ok(())
    }

    /// All tokens, `[n]` u32.
    pub fn all(&self) -> Result<Array, LmError> {
        self.last(self.len())
    }

    /// The last `count` tokens, or as many as there are, `[n]` u32.
    pub fn last(&self, count: usize) -> Result<Array, LmError> {
        Ok(ops::reshape(self.last_row(count)?, &[-1])?)
    }

    /// As [`last`](Self::last), `[1, n]`.
    pub(super) fn last_row(&self, count: usize) -> Result<Array, LmError> {
        let count = count.min(self.len()) as i32;
        Ok(ffi::slice(&self.ids, &[0, self.len - count], &[1, self.len])?)
    }

    /// The whole buffer, to be evaluated with the step that appended to it.
    pub(crate) fn array(&self) -> &Array {
        &self.ids
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it holds no token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(array: Result<Array, LmError>) -> Vec<u32> {
        let array = array.expect("tokens");
        array.eval().expect("eval");
        array.as_slice::<u32>().to_vec()
    }

    #[test]
    fn tokens_come_back_in_order_across_every_growth() {
        fn check(num_prompt: u32, num_sampled: u32) {
            let prompt: Vec<u32> = (0..num_prompt).map(|index| 1000 + index).collect();
            let mut buffer = TokenBuffer::from_tokens(&prompt);
            let mut expected = prompt;
            let mut early = None;
            for index in 0..num_sampled {
                // A token that is not computed yet.
                let token =
                    ops::add(Array::from_slice(&[index], &[1]), Array::from_slice(&[7u32], &[1]))
                        .expect("token");
                buffer.append(&token).expect("append");
                expected.push(index + 7);
                if index == 1 {
                    early = Some((buffer.all(), buffer.clone(), expected.clone()));
                }
            }
            assert_eq!((ids(buffer.all()), buffer.len()), (expected.clone(), expected.len()));
            assert_eq!(ids(buffer.last(20)), expected[expected.len().saturating_sub(20)..]);
            if let Some((all, buffer, expected)) = early {
                assert_eq!(ids(all), expected, "a view taken early keeps its tokens");
                assert_eq!(ids(buffer.all()), expected, "so does a copy");
            }
        }
        check(0, 3);
        check(1, 0);
        check(255, 2);
        check(256, 300);
        check(300, 220);
    }

    #[test]
    fn a_token_of_any_shape_of_one_is_taken() {
        let mut buffer = TokenBuffer::from_tokens(&[]);
        assert!(buffer.is_empty());
        buffer.append(&Array::from_slice(&[5u32], &[1, 1])).expect("append");
        buffer.append(&Array::from_slice(&[6u32], &[])).expect("append");
        assert!(buffer.append(&Array::from_slice(&[7u32, 8], &[2])).is_err());
        assert_eq!(ids(buffer.all()), [5, 6]);
    }
}
