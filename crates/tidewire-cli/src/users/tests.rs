use std::fs;
use std::os::unix::fs::PermissionsExt;

use tidewire::auth::Action;

use super::*;
use crate::serve::ServeArguments;

fn read(text: &str) -> Result<UserFile, UsersError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidewire.toml");
    fs::write(&path, text).unwrap();
    let file = UserFile::read(&path, &ServeArguments::command())?;
    file.chain(Chain::new())?;
    Ok(file)
}

#[test]
fn users_have_their_permissions_limits_and_proofs() {
    let file = read(
        "lanes = 2\n[auth.default_permissions]\npublish = { allow = [\"dev.{name}.>\"] }\n\
         [[users]]\nname = \"ann\"\nunix_users = [7]\naddresses = [\"10.0.0.0/8\"]\n\
         [[users]]\nname = \"root\"\nsessions_max = 1\nbytes_per_second = 9\n\
         permissions.call = { allow = [\">\"], deny = [\"a\"] }\n",
    )
    .unwrap();
    let ann = file.users.identity("ann").unwrap();
    assert!(
        ann.permissions()
            .allows(Action::Publish("dev.ann.x"), false)
    );
    let proofs: Vec<String> = file.proofs("ann").map(|it| it.to_string()).collect();
    assert_eq!(proofs, ["Unix user 7", "address 10.0.0.0/8"]);
    let root = file.users.identity("root").unwrap();
    assert!(
        !root
            .permissions()
            .allows(Action::Publish("dev.root.x"), false)
    );
    assert!(root.permissions().allows(Action::Call("b"), false));
    assert_eq!(root.own_limits().sessions_max, Some(1));
    assert!(root.own_limits().rate.is_some());
}

/// The mistake of an unknown key lists all keys.
#[test]
fn the_keys_of_a_user_are_in_the_document() {
    let page = include_str!("../../../../docs/identity.md");
    let error = read("[[users]]\nname = \"a\"\ncolour = 1")
        .unwrap_err()
        .to_string();
    let (_, keys) = error.split_once("the keys are ").unwrap();
    let keys: Vec<&str> = keys.split(", ").collect();
    assert!(keys.len() >= 10, "{keys:?}");
    let rows: String = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    for key in keys {
        assert!(rows.contains(&format!("`{key}`")), "{key} has no row");
    }
}

#[test]
fn an_entry_behind_one_that_covers_it_never_counts() {
    let file = read(
        "[[users]]\nname = \"ann\"\nunix_users = [7]\ncertificates = [\"a\"]\n\
         addresses = [\"10.1.0.0/16\", \"fd00::/8\", \"192.0.2.1\"]\n\
         [[users]]\nname = \"bob\"\nunix_users = [7, 8]\ncertificates = [\"a\", \"b\"]\n\
         addresses = [\"10.0.0.0/8\", \"10.1.2.0/24\", \"10.2.0.0/16\", \"fd12::1\", \"192.0.2.1/32\"]\n",
    )
    .unwrap();
    let hidden: Vec<String> = file
        .proofs("bob")
        .enumerate()
        .filter(|(index, _)| file.hides("bob", *index) == Some("ann"))
        .map(|(_, proof)| proof.to_string())
        .collect();
    let expected = [
        "certificate a",
        "Unix user 7",
        "address 10.1.2.0/24",
        "address fd12::1",
        "address 192.0.2.1/32",
    ];
    assert_eq!(hidden, expected);
    assert!((0..5).all(|index| file.hides("ann", index).is_none()));
}

/// Whoever may write the file could give itself all permissions.
#[test]
fn a_file_with_users_that_others_may_write_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidewire.toml");
    let read_with = |text: &str, mode| {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        UserFile::read(&path, &ServeArguments::command())
    };
    for mode in [0o602, 0o620, 0o646, 0o664, 0o666] {
        for decisive in [
            "[auth]\n",
            "auth_tokens = \"tokens\"\n",
            "auth_jwt = \"jwt.toml\"\n",
        ] {
            let refused = read_with(decisive, mode).unwrap_err();
            assert!(
                matches!(refused, UsersError::Untrusted(_)),
                "{mode:o}: {refused}"
            );
        }
        assert!(read_with("lanes = 1\n", mode).is_ok(), "{mode:o}");
    }
    assert!(read_with("[auth]\n", 0o644).is_ok());
}

#[test]
fn mistakes_are_told() {
    for (text, told) in [
        (
            "[auth]\ndefault = 1",
            "tidewire.toml:2: unknown key `auth.default`; did you mean `default_permissions`?",
        ),
        (
            "[[users]]\nnam = \"a\"",
            "unknown key `users[0].nam`; did you mean `name`?",
        ),
        (
            "[[users]]\n",
            "tidewire.toml:1: the key `users[0].name` is missing",
        ),
        (
            "[[users]]\nname = \"a\"\npermissions.shout = {}",
            "unknown key `users[0].permissions.shout`",
        ),
        (
            "[[users]]\nname = \"a\"\npermissions.say = { allow = [\"a.>.b\"] }",
            "tidewire.toml:3: `users[0].permissions.say`: \"a.>.b\" is not a pattern",
        ),
        (
            "[[users]]\nname = \"a\"\n[[users]]\nname = \"a\"",
            "tidewire.toml:4: `users[1].name`: there are two users \"a\"",
        ),
        (
            "[[users]]\nname = \"a\"\naddresses = [\"x\"]",
            "\"x\" is not a range",
        ),
        (
            "[[users]]\nname = \"a\"\nmessages_per_second = 0",
            "lets nothing through",
        ),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(told), "{text:?}: {error}");
    }
}

/// The bug: the error of a user was the picture of five lines that the TOML reader draws, squashed into one.
#[test]
fn a_mistake_in_a_user_has_its_line_and_the_key_that_was_meant() {
    let error = read("lanes = 1\n[[users]]\nname = \"a\"\npermisions.publish = {}\n").unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with(
            "tidewire.toml:4: unknown key `users[0].permisions`; did you mean `permissions`?"
        ),
        "{text}"
    );
    let error = read("[[users]]\nname = 7\n").unwrap_err().to_string();
    assert!(
        error.contains("tidewire.toml:2: ") && !error.contains('\n') && !error.contains('|'),
        "{error}"
    );
}
