//! Requests to an upstream from within a handler.

use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{Kind, Message};

use super::link::Then;
use super::table::submit;
use super::{Upstream, UpstreamError};
use crate::service::{Context, HandlerError, HandlerResult};

impl Context<'_> {
    /// Sends a request to `upstream`, and calls `answer` with the reply on this lane. The context of that call has
    /// the same session as this one, and no message being handled. To answer a request with the reply, move the token
    /// of [`Context::defer`] into `answer`.
    ///
    /// `answer` is called once: with the reply's payload, or with the error. It is not called if this method returns
    /// an error, or if the session of this call ends before the reply comes; the request is then cancelled. In a call
    /// without a session, such as [`Service::on_turn`](crate::Service::on_turn), it is always called. Once tables
    /// have grown, the box of the closure is the only allocation.
    ///
    /// An empty `method` sends a request without a name.
    ///
    /// ```
    /// use tidewire::upstream::{Upstream, UpstreamError};
    /// use tidewire::{Context, HandlerResult, Message};
    ///
    /// /// Answers with the concatenated replies of two backends.
    /// fn both(cx: &mut Context<'_>, message: Message<'_>, one: &Upstream, two: &Upstream) -> HandlerResult {
    ///     let (deferred, two) = (cx.defer(), two.clone());
    ///     let question = message.payload.to_vec();
    ///     cx.request(one, "", message.payload, move |cx, first| {
    ///         let Ok(first) = first.map(<[u8]>::to_vec) else {
    ///             return; // Dropping the token refuses the request.
    ///         };
    ///         let asked = cx.request(&two, "", &question, move |_, second| {
    ///             if let Ok(second) = second {
    ///                 let _ = deferred.reply(&[&first, second].concat());
    ///             }
    ///         });
    ///         if let Err(error) = asked {
    ///             eprintln!("not asked: {error}");
    ///         }
    ///     })?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`UpstreamError::TooMany`], [`Down`](UpstreamError::Down), [`Encode`](UpstreamError::Encode) or
    /// [`ShuttingDown`](UpstreamError::ShuttingDown). Nothing was sent.
    pub fn request(
        &mut self,
        upstream: &Upstream,
        method: &str,
        payload: &[u8],
        answer: impl FnOnce(&mut Context<'_>, Result<&[u8], UpstreamError>) + Send + 'static,
    ) -> Result<(), UpstreamError> {
        let call = Message::new(Kind::Request, 0, payload).with_name(method);
        let asker = self.call.id();
        submit(
            self.core,
            upstream,
            asker,
            &call,
            Then::Call(Box::new(answer)),
        )
        .map_err(|(error, _)| error)
    }

    /// Forwards the request being handled to `upstream`: the same method and payload are sent there, and the reply or
    /// the refusal is returned to the caller. If the upstream cannot be reached, or does not answer, the request is
    /// refused; see [`UpstreamError`].
    ///
    /// # Errors
    /// `message` is not a request.
    pub fn forward(&mut self, upstream: &Upstream, message: &Message<'_>) -> HandlerResult {
        if self.codec().format().has_ids() && message.kind != Kind::Request {
            let text = "only requests are forwarded";
            return Err(HandlerError::new(ErrorCode::Unsupported, text));
        }
        if upstream.0.target.is_none() && self.core.replies.remote.is_some() {
            // Nodes that pass each other what none of them has would never end.
            return Err(UpstreamError::NoNode.into());
        }
        let call = Message::new(Kind::Request, message.channel, message.payload);
        let call = call.with_name(message.name);
        let (asker, deferred) = (self.call.id(), self.defer());
        let submitted = submit(self.core, upstream, asker, &call, Then::Reply(deferred));
        if let Err((error, Then::Reply(deferred))) = submitted {
            error.with_words(|code, text| deferred.refuse(code, text));
        }
        Ok(())
    }
}
