//! The first lines of the log of a server: which program it is, what it was told, and where it listens.

use tidewire::Server;

use super::ServeArguments;
use crate::ready::Ready;

/// Begins the log with what its reader must know.
pub(super) fn begin(arguments: &ServeArguments) {
    let config = arguments.config.as_deref().map(|path| path.display());
    tracing::info!(
        version = %tidewire_command::VERSION_AND_COMMIT,
        pid = std::process::id(),
        config = config.map(tracing::field::display),
        app = ?arguments.app,
        "tidewire serve begins"
    );
}

/// Says in a log file where the server listens. Without a file, standard output beside the log has it.
pub(super) fn listening(arguments: &ServeArguments, ready: &Ready, server: &Server) {
    if !arguments.log.has_file() {
        return;
    }
    let addresses = ready.addresses.join(", ");
    let (admin, health) = (ready.admin.as_deref(), ready.health.as_deref());
    let node = server.inspector().node().map(|it| it.id);
    let (codec, poller) = (&*ready.codec, &*ready.poller);
    tracing::info!(%addresses, admin, health, node, lanes = ready.lanes, codec, poller, "listening");
}
