//! Files with certificates and keys: each error says what is wrong with which file.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;
use tidewire::tls::{ServerTls, TlsError};
use tidewire_testkit::certificates::usual;

fn error(tls: &ServerTls) -> TlsError {
    tls.layer("tw1").unwrap_err()
}

/// A file that only its owner may read.
fn file(directory: &TempDir, name: &str, content: &str) -> String {
    let path = directory.path().join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn files_that_cannot_be_used_are_named_with_a_remedy() {
    let directory = TempDir::new().unwrap();
    let (_, identity) = usual();
    let chain = file(&directory, "server.pem", &identity.chain);
    let key = file(&directory, "server.key", &identity.key);
    let tls = |chain: &str, key: &str| ServerTls::new(chain, key);
    assert!(tls(&chain, &key).layer("tw1").is_ok());

    let missing = error(&tls("/nowhere/server.pem", &key));
    assert!(matches!(
        missing,
        TlsError::Unreadable {
            part: "certificate",
            ..
        }
    ));
    assert!(
        missing.to_string().contains("/nowhere/server.pem"),
        "{missing}"
    );

    let no_key = error(&tls(&chain, "/nowhere/server.key"));
    let part = "key";
    assert!(
        matches!(&no_key, TlsError::Unreadable { part: found, .. } if *found == part),
        "{no_key}"
    );
    // A directory opens, and cannot be read.
    fs::set_permissions(directory.path(), Permissions::from_mode(0o700)).unwrap();
    let unreadable = error(&tls(&chain, directory.path().to_str().unwrap()));
    let is_named = unreadable.to_string().starts_with("cannot read the key");
    assert!(is_named, "{unreadable}");

    let empty = file(&directory, "empty.pem", "");
    for (chain, key, part) in [
        (&empty, &key, "certificate"),
        (&chain, &empty, "key"),
        (&key, &key, "certificate"),
    ] {
        let error = error(&tls(chain, key));
        let is_empty = matches!(error, TlsError::Empty { part: found, .. } if found == part);
        assert!(is_empty, "{error}");
    }

    let long = file(&directory, "long.pem", &identity.chain.repeat(2_000));
    assert!(fs::metadata(&long).unwrap().len() > 1 << 20);
    let too_long = error(&tls(&long, &key));
    assert!(matches!(too_long, TlsError::TooLong { .. }), "{too_long}");

    let broken = file(
        &directory,
        "broken.pem",
        "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
    );
    let malformed = error(&tls(&broken, &key));
    assert!(
        matches!(malformed, TlsError::Malformed { .. }),
        "{malformed}"
    );
}

#[test]
fn a_key_that_others_may_read_is_refused_and_one_of_a_group_is_not() {
    let directory = TempDir::new().unwrap();
    let (_, identity) = usual();
    let chain = file(&directory, "server.pem", &identity.chain);
    let key = file(&directory, "server.key", &identity.key);
    for (mode, works) in [(0o600, true), (0o640, true), (0o644, false), (0o666, false)] {
        fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        let tls = ServerTls::new(chain.as_str(), key.as_str());
        assert_eq!(tls.layer("tw1").is_ok(), works, "{mode:o}");
        if !works {
            let text = error(&tls).to_string();
            assert!(
                text.contains("chmod 600") && text.contains(&format!("{mode:o}")),
                "{text}"
            );
        }
    }
}

/// Regression: files of authorities that all users may write were accepted, so any user could make certificates for
/// clients.
#[test]
fn authorities_that_others_may_write_are_refused() {
    let directory = TempDir::new().unwrap();
    let (_, identity) = usual();
    let chain = file(&directory, "server.pem", &identity.chain);
    let key = file(&directory, "server.key", &identity.key);
    let ca = file(&directory, "ca.pem", &identity.chain);
    for (mode, works) in [(0o600, true), (0o644, true), (0o664, false), (0o666, false)] {
        fs::set_permissions(&ca, Permissions::from_mode(mode)).unwrap();
        let tls = ServerTls::new(chain.as_str(), key.as_str()).require_clients_of(ca.as_str());
        assert_eq!(tls.layer("tw1").is_ok(), works, "{mode:o}");
        if !works {
            let text = error(&tls).to_string();
            assert!(text.contains("chmod go-w"), "{text}");
        }
    }
}

#[test]
fn keys_are_never_shown() {
    let (_, identity) = usual();
    let shown = format!("{:?}", identity.server());
    assert!(
        !shown.contains("BEGIN") && shown.contains("given as bytes"),
        "{shown}"
    );
}
