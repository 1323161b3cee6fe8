//! Which paths of volumes are stores, and which are only almost so.
//!
//! How: what looks like a URL is a store; what begins like one and is none is refused, since a file
//! of that name is not what was meant. Cost: a look at the words. Not for: whether the store is
//! there.

use std::path::Path;

/// Whether a volume's path names an object store rather than a file: it looks like a URL. One that
/// names no store that there is gets refused where it is opened.
#[must_use]
pub fn is_store(path: &Path) -> bool {
    let text = path.as_os_str().to_string_lossy();
    text.split_once(":/").is_some_and(|(scheme, _)| {
        let mut characters = scheme.chars();
        characters.next().is_some_and(|first| first.is_ascii_alphabetic())
            && characters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

/// Schemes of stores that there are clients for.
const SCHEMES: [&str; 4] = ["s3", "az", "gs", "file"];

/// Whether a path that [`is_store`] has a scheme that some client knows.
pub(crate) fn has_known_scheme(path: &Path) -> bool {
    let text = path.as_os_str().to_string_lossy();
    text.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// Whether a path is a URL of a cloud's store without the bucket or container that it is to name.
pub(crate) fn lacks_bucket(path: &Path) -> bool {
    let text = path.as_os_str().to_string_lossy();
    text.split_once("://").is_some_and(|(scheme, rest)| {
        let is_of_cloud = scheme != "file" && SCHEMES.contains(&scheme);
        is_of_cloud && rest.split('/').next().is_none_or(str::is_empty)
    })
}

/// How stores are written.
const HINT: &str = "write s3://BUCKET/PREFIX, az://CONTAINER/PREFIX, gs://BUCKET/PREFIX or \
                    file:///FOLDER";

/// Whether a path begins as a store's URL does and is none, as `s3:bucket`. From the root on, or
/// with `./` before it, it is a file of that name.
#[must_use]
pub fn is_misspelled(path: &Path) -> bool {
    let text = path.as_os_str().to_string_lossy();
    let scheme = text.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    let is_known =
        |scheme: String| SCHEMES.contains(&&*scheme) || ["http", "https"].contains(&&*scheme);
    !is_store(path) && scheme.is_some_and(is_known)
}

/// Why such a path, or a URL that no client knows, is refused, and what to do.
pub(crate) fn no_store(path: &Path) -> (String, String) {
    let path_text = path.display();
    let cause = match lacks_bucket(path) {
        true => format!("`{path_text}` names no store: it has no bucket or container"),
        false => format!("`{path_text}` names no store that there is a client for"),
    };
    let hint = match is_misspelled(path) {
        true => format!("{HINT}; or `./{path_text}` for a file of that name"),
        false => HINT.to_owned(),
    };
    (cause, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what looks like a store's URL is never taken for a file's name. Method: paths by hand.
    #[test]
    fn what_looks_like_a_url_is_no_file() {
        for url in ["s3://b/x", "file:///x", "http://b/x", "s3:/b/x", "S3://b", "a+b://c"] {
            assert!(is_store(Path::new(url)), "{url}");
        }
        for file in ["/a/b", "maps", "./s3://b", "/tmp/http:/b/x", "a b:/c", ":/x", "1:2", "a:b"] {
            assert!(!is_store(Path::new(file)), "{file}");
        }
    }

    /// Goal: what begins as a store's URL and is none is known, so is one without a bucket, and a
    /// file is a file. Method: paths by hand.
    #[test]
    fn what_is_almost_a_url_is_known() {
        for path in
            ["s3:bucket", "file:bucket", "az:x", "gs:b", "https:x", "S3:b/c", "s3:", "file:x:/y"]
        {
            assert!(is_misspelled(Path::new(path)), "{path}");
            assert!(no_store(Path::new(path)).1.contains(&format!("./{path}")), "{path}");
        }
        for path in ["s3://", "s3:///x", "az://", "gs:///"] {
            assert!(lacks_bucket(Path::new(path)), "{path}");
            assert!(
                no_store(Path::new(path)).0.contains("names no store: it has no bucket"),
                "{path}"
            );
        }
        for path in ["s3://b", "s3://b/x", "file:///x", "file://", "ftp://", "/s3://", "s3:b"] {
            assert!(!lacks_bucket(Path::new(path)), "{path}");
        }
        for path in ["s3://b", "./s3:b", "/s3:b", "a/s3:b", "s3", "a:b", "ftp:x", "s3x:b", ":s3"] {
            assert!(!is_misspelled(Path::new(path)), "{path}");
        }
    }
}
