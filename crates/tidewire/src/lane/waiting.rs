//! Joins and subscriptions that waited for the node.

use super::Lane;
use crate::service::Service;

impl<S: Service> Lane<S> {
    /// Gives the service the joins again that need not wait any more.
    #[cold]
    pub(super) fn join_again(&mut self) {
        for join in self.core.rooms().joins().take_ready() {
            let session = self.core.sessions.table.find(join.id());
            if !session.is_some_and(|session| session.connection.is_open()) {
                continue;
            }
            let message = join.message();
            self.core.rooms().joins().set_repeating(true);
            self.service
                .call(&mut self.core, join.id(), |core, service| {
                    let mut context = core.context(join.id());
                    context.call.begin(&message);
                    if let Err(error) = service.on_message(&mut context, message) {
                        context.call.refuse(context.core, error);
                    }
                });
            self.core.rooms().joins().set_repeating(false);
        }
    }
}
