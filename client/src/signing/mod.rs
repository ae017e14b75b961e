//! Signatures of requests, by which brokers with `aclEnable` tell who asks (stock 4.9.8, `AclClientRPCHook`): a key's name and an HMAC-SHA1 over
//! all fields and the body.

mod sha1;

use std::borrow::Cow;
use std::fmt;

use sha1::Hmac;

const ACCESS_KEY: &str = "AccessKey";
const SECURITY_TOKEN: &str = "SecurityToken";
const SIGNATURE: &str = "Signature";
/// Stock 4.9's brokers leave this field out when they look at a signature, although their own clients sign it.
const UNSIGNED: &str = "_UNIQUE_KEY_QUERY";

/// Who asks: an access key with its secret, as in a broker's `plain_acl.yml`. See `ClientBuilder::credentials`.
#[derive(Clone)]
pub struct Credentials {
    access_key: String,
    token: Option<String>,
    hmac: Hmac,
}

impl Credentials {
    /// An access key and its secret, which is never sent and never shown.
    pub fn new(access_key: impl Into<String>, secret_key: impl AsRef<str>) -> Self {
        Credentials {
            access_key: access_key.into(),
            token: None,
            hmac: Hmac::new(secret_key.as_ref().as_bytes()),
        }
    }

    /// With a token for the time being, which some brokers give out with keys.
    #[must_use]
    pub fn security_token(self, token: impl Into<String>) -> Self {
        Credentials { token: Some(token.into()), ..self }
    }

    /// A request's fields with those that sign it.
    pub(crate) fn sign<'a>(
        &'a self,
        ext: impl Iterator<Item = (&'a str, &'a str)>,
        body: &[u8],
    ) -> Vec<(&'a str, Cow<'a, str>)> {
        let own = [ACCESS_KEY, SECURITY_TOKEN, SIGNATURE];
        let mut fields: Vec<_> = ext
            .filter(|(name, _)| !own.contains(name))
            .map(|(name, value)| (name, Cow::Borrowed(value)))
            .collect();
        fields.push((ACCESS_KEY, Cow::Borrowed(&self.access_key)));
        fields.extend(self.token.as_deref().map(|token| (SECURITY_TOKEN, Cow::Borrowed(token))));
        let mut signed: Vec<_> = fields.iter().filter(|(name, _)| *name != UNSIGNED).collect();
        // The order of Java's strings.
        signed.sort_by(|(one, _), (other, _)| one.encode_utf16().cmp(other.encode_utf16()));
        let mut hmac = self.hmac.clone();
        signed.iter().for_each(|(_, value)| hmac.add(value.as_bytes()));
        hmac.add(body);
        fields.push((SIGNATURE, Cow::Owned(base64(&hmac.finish()))));
        fields
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// Base64 in the standard alphabet, with padding.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = (0..3)
            .fold(0, |bits, at| bits << 8 | u32::from(chunk.get(at).copied().unwrap_or_default()));
        for digit in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * digit) & 63) as usize];
            text.push(if digit <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(credentials: &Credentials, ext: &[(&str, &str)], body: &str) -> String {
        let fields = credentials.sign(ext.iter().copied(), body.as_bytes());
        let found = fields.iter().find(|(name, _)| *name == SIGNATURE);
        found.map(|(_, value)| value.to_string()).expect("a signature")
    }

    #[test]
    fn signatures_are_those_of_stock_tools() {
        let credentials = Credentials::new("rocketmq2", "12345678");
        let group = r#"{"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,"consumeFromMinEnable":false,"groupName":"CG3","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}"#;
        let topic = [
            ("topic", "TopicA"),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", "4"),
            ("writeQueueNums", "4"),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
        ];
        assert_eq!(signature(&credentials, &[], ""), "Ou1T58RIcyZWaTIwzkhJZWn/Zvs=");
        let route = [("topic", "TBW102")];
        assert_eq!(signature(&credentials, &route, ""), "/u5P/wZUbhjanu4LM/UzEdo2u2I=");
        assert_eq!(signature(&credentials, &[], group), "ce0hlMRnaunqneiQSHaI6eFmDOQ=");
        assert_eq!(signature(&credentials, &topic, ""), "c7CU6hFP6J7nCnaQUkHUjTPs+20=");
    }

    #[test]
    fn a_signature_covers_every_field_but_one_and_replaces_what_is_there() {
        let credentials = Credentials::new("key", "secret");
        let plain = signature(&credentials, &[("a", "1"), ("B", "2")], "body");
        for same in [
            &[("B", "2"), ("a", "1")][..],
            &[("a", "1"), ("B", "2"), (UNSIGNED, "true")],
            &[("a", "1"), (SIGNATURE, "x"), ("B", "2"), (ACCESS_KEY, "another")],
        ] {
            assert_eq!(signature(&credentials, same, "body"), plain);
        }
        for (other, body) in [
            (&[("a", "2"), ("B", "1")][..], "body"),
            (&[("a", "1"), ("B", "2")], "bodies"),
            (&[("a", "1"), ("B", "2"), ("c", "3")], "body"),
        ] {
            assert_ne!(signature(&credentials, other, body), plain);
        }
        let other = credentials.clone().security_token("token");
        assert_ne!(signature(&other, &[("a", "1"), ("B", "2")], "body"), plain);
        let fields = other.sign([("a", "1")].into_iter(), b"");
        let names: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["a", ACCESS_KEY, SECURITY_TOKEN, SIGNATURE]);
    }

    #[test]
    fn a_secret_is_never_shown() {
        let shown = format!("{:?}", Credentials::new("key", "topsecret").security_token("token"));
        assert!(shown.contains("key") && !shown.contains("topsecret") && !shown.contains("token"));
    }

    #[test]
    fn texts_are_padded_as_rfc_4648_says() {
        let shown = ["", "f", "fo", "foo", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(shown, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYmFy"]);
    }
}
