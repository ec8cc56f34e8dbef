//! How much of everything a server lets in at a time.

use outlive::error::Error;

/// The limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most connections at a time.
    pub connections: usize,
    /// The most who may listen to changes. Others still get in.
    pub listeners: usize,
    /// The most who may follow what runs write.
    pub followers: usize,
    /// How many requests a client may make within a second, for long.
    pub rate: u32,
    /// How many they may make at once, after a rest.
    pub burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 2_048, listeners: 1_536, followers: 64, rate: 500, burst: 1_000 }
    }
}

impl Limits {
    /// These limits, but for what is said as `NAME=NUMBER`.
    pub fn with(mut self, said: &[String]) -> Result<Self, Error> {
        for one in said {
            let wrong = || Error::Invalid(format!("`{one}` is no limit of a server"));
            let (name, number) = one.split_once('=').ok_or_else(wrong)?;
            let number: u32 = number.parse().map_err(|_| wrong())?;
            let size = usize::try_from(number).map_err(|_| wrong())?;
            match name {
                "connections" => self.connections = size,
                "listeners" => self.listeners = size,
                "followers" => self.followers = size,
                "rate" => self.rate = number,
                "burst" => self.burst = number,
                _ => return Err(wrong()),
            }
        }
        Ok(self)
    }
}
