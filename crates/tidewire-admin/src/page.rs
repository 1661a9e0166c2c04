//! The dashboard and the schema, as parts of the program.

use crate::http::{Answer, bytes};

pub(crate) fn index() -> Answer {
    bytes(
        "text/html; charset=utf-8",
        include_bytes!("page/index.html"),
    )
}

pub(crate) fn script() -> Answer {
    bytes(
        "text/javascript; charset=utf-8",
        include_bytes!("page/admin.js"),
    )
}

pub(crate) fn style() -> Answer {
    bytes("text/css; charset=utf-8", include_bytes!("page/admin.css"))
}

pub(crate) fn schema() -> Answer {
    bytes(
        "application/schema+json",
        include_bytes!("page/schema.json"),
    )
}
