//! Asking an upstream, from within a handler.

use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{Kind, Message};

use super::link::Then;
use super::table::submit;
use super::{Upstream, UpstreamError};
use crate::service::{Context, HandlerError, HandlerResult};

impl Context<'_> {
    /// Asks `upstream`, and calls `answer` with its reply on this lane. The context of that call is about the session that this
    /// one is about, with no message being handled. To answer a request by it, take [`Context::defer`] along.
    ///
    /// `answer` is called once: with the reply's payload, or with why there is none. It is not called when this returns an
    /// error, and not when the session that asks has ended by then; the request is then taken back. Without a session, as in
    /// [`Service::on_turn`](crate::Service::on_turn), it always is. Putting it into a box is all that is allocated once tables
    /// have grown.
    ///
    /// An empty `method` asks without a name.
    ///
    /// ```
    /// use tidewire::{Context, HandlerResult, Message, Upstream, UpstreamError};
    ///
    /// /// Answers what two backends say, one behind the other.
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
        let asker = self.id;
        submit(
            self.core,
            upstream,
            asker,
            &call,
            Then::Call(Box::new(answer)),
        )
        .map_err(|(error, _)| error)
    }

    /// Answers the request being handled by what `upstream` replies to it: the same method and payload go there, and the reply
    /// or the refusal comes back. If the upstream cannot be asked, or does not answer, the request is refused; see
    /// [`UpstreamError`].
    ///
    /// # Errors
    /// `message` is no request.
    pub fn forward(&mut self, upstream: &Upstream, message: &Message<'_>) -> HandlerResult {
        if self.codec().has_ids() && message.kind != Kind::Request {
            let text = "only requests are forwarded";
            return Err(HandlerError::new(ErrorCode::Unsupported, text));
        }
        let call = Message::new(Kind::Request, message.channel, message.payload);
        let call = call.with_name(message.name);
        let (asker, deferred) = (self.id, self.defer());
        let submitted = submit(self.core, upstream, asker, &call, Then::Reply(deferred));
        if let Err((error, Then::Reply(deferred))) = submitted {
            error.with_words(|code, text| deferred.refuse(code, text));
        }
        Ok(())
    }
}
