//! The users of a server, at its start and when SIGHUP asks for the present ones.

use tidewire::Server;
use tidewire::auth::Replaceable;

use super::ServeArguments;
use crate::users::Sources;

/// Returns where the users are.
pub(super) fn sources(arguments: &ServeArguments) -> Sources {
    Sources {
        config: arguments.config.clone(),
        tokens: arguments.auth_tokens.clone(),
        needs_tables: false,
    }
}

/// Reads the users again. If that fails, the former ones stay.
pub(super) fn reload(sources: &mut Sources, authenticator: Option<&Replaceable>, server: &Server) {
    let Some(authenticator) = authenticator else {
        if !matches!(sources.authenticator(), Ok(None)) {
            tracing::error!(
                "this server was started without users, so it asks nobody; restart it to use those in its files"
            );
        }
        return;
    };
    match sources.authenticator() {
        Ok(Some(users)) => {
            authenticator.replace(users);
            server.reauthenticate();
            tracing::info!("the users were read again");
        }
        Ok(None) => tracing::error!("no users are left in the files; the former users stay"),
        Err(error) => tracing::error!(%error, "cannot read the users again; the former users stay"),
    }
}
