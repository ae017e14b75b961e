//! A report as one page: data, style and script are in it, so that it opens without a network, now and in years.

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");

/// A page titled `title` that shows `json` as a report of the kind `run` or `compare`.
#[must_use]
pub fn page(title: &str, kind: &str, json: &str) -> String {
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    // Nothing in the data may end the element it stands in.
    let json = json.replace('<', "\\u003c");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main id=\"page\" data-kind=\"{kind}\"></main>\n\
         <noscript>This report draws its plots with a script of its own; its data is the JSON in this file.</noscript>\n\
         <script type=\"application/json\" id=\"data\">\n{json}</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tags of a page in their order, without what is inside of script and style.
    fn tags(page: &str) -> Vec<String> {
        let (mut rest, mut tags) = (page, Vec::new());
        while let Some((_, after)) = rest.split_once('<') {
            let (tag, after) = after.split_once('>').expect("a tag ends");
            let name = tag.split_whitespace().next().expect("a name").to_owned();
            rest = match name.as_str() {
                "script" | "style" => &after[after.find(&format!("</{name}")).expect("it ends")..],
                _ => after,
            };
            tags.push(name);
        }
        tags
    }

    #[test]
    fn a_page_is_whole_whatever_is_in_its_data() {
        let hostile = r#"{"topic":"</script><img src=x>\u0000","n":1}"#;
        let page = page("a < b & c", "run", hostile);
        let mut open = Vec::new();
        for tag in tags(&page) {
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop().as_deref(), Some(name)),
                None if ["!doctype", "meta"].contains(&tag.as_str()) => {}
                None => open.push(tag),
            }
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(page.contains("<title>a &lt; b &amp; c</title>"));
        let data = page
            .split_once("id=\"data\">\n")
            .and_then(|(_, rest)| rest.split_once("</script>"))
            .expect("data")
            .0;
        let read: serde_json::Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(read, serde_json::from_str::<serde_json::Value>(hostile).expect("JSON"));
    }

    #[test]
    fn a_page_refers_to_nothing_outside_of_itself() {
        let page = page("t", "run", "{}");
        for reference in [
            "http:",
            "https:",
            "src=",
            "href=",
            "@import",
            "url(",
            "//cdn",
            "fetch(",
            "XMLHttpRequest",
            "import(",
        ] {
            assert!(!page.contains(reference), "{reference}");
        }
    }
}
