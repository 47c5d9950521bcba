//! The types of expressions.

/// The type of an expression, with Prometheus' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// One number per step.
    Scalar,
    /// One string.
    String,
    /// Series with one point per step.
    Vector,
    /// Series with a window of points per step.
    Matrix,
}

impl ValueType {
    /// The name in error messages: `instant vector` for a vector.
    pub fn documented(self) -> &'static str {
        match self {
            ValueType::Scalar => "scalar",
            ValueType::String => "string",
            ValueType::Vector => "instant vector",
            ValueType::Matrix => "range vector",
        }
    }

    /// The name in the API's `resultType`.
    pub fn api_name(self) -> &'static str {
        match self {
            ValueType::Scalar => "scalar",
            ValueType::String => "string",
            ValueType::Vector => "vector",
            ValueType::Matrix => "matrix",
        }
    }
}
