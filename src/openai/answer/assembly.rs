//! Characters whose bytes two responses share. Private, until the crate has its own.

#[derive(Default)]
pub(super) struct Assembly {
    held: Vec<u8>,
    text: String,
}

impl Assembly {
    pub fn push<'a>(&'a mut self, bytes: &'a [u8]) -> &'a str {
        if self.held.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return text;
        }
        self.text.clear();
        self.held.extend_from_slice(bytes);
        let whole = std::mem::take(&mut self.held);
        let mut rest = &whole[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.text.push_str(text);
                    break;
                }
                Err(error) => {
                    let (valid, behind) = rest.split_at(error.valid_up_to());
                    self.text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    let Some(bad) = error.error_len() else {
                        self.held = behind.to_vec();
                        break;
                    };
                    self.text.push('\u{fffd}');
                    rest = behind.get(bad..).unwrap_or_default();
                }
            }
        }
        &self.text
    }

    pub fn finish(&mut self) -> &str {
        let rest = std::mem::take(&mut self.held);
        if rest.is_empty() { "" } else { "\u{fffd}" }
    }
}
