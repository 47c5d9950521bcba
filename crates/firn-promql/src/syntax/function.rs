//! The functions with their signatures.

use crate::syntax::ValueType::{self, Matrix, Scalar, String as Text, Vector};

/// A function's name and signature.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub(crate) id: FunctionId,
    /// The name in a query.
    pub name: &'static str,
    /// The argument types; a variadic function repeats the last.
    pub args: &'static [ValueType],
    /// The number of arguments that may be missing or added: 0 fixed, n > 0 up to n more than all
    /// but the last, -1 without limit.
    pub variadic: i8,
    /// The type of the result.
    pub returns: ValueType,
}

macro_rules! functions {
    ($($id:ident $name:literal ($($arg:ident),*) $variadic:literal $returns:ident;)*) => {
        /// Identifies a function.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum FunctionId { $($id),* }

        /// Every function, sorted by name.
        static FUNCTIONS: &[Function] = &[
            $(Function {
                id: FunctionId::$id,
                name: $name,
                args: &[$($arg),*],
                variadic: $variadic,
                returns: $returns,
            }),*
        ];
    };
}

functions! {
    Abs "abs" (Vector) 0 Vector;
    Absent "absent" (Vector) 0 Vector;
    AbsentOverTime "absent_over_time" (Matrix) 0 Vector;
    Acos "acos" (Vector) 0 Vector;
    Acosh "acosh" (Vector) 0 Vector;
    Asin "asin" (Vector) 0 Vector;
    Asinh "asinh" (Vector) 0 Vector;
    Atan "atan" (Vector) 0 Vector;
    Atanh "atanh" (Vector) 0 Vector;
    AvgOverTime "avg_over_time" (Matrix) 0 Vector;
    Ceil "ceil" (Vector) 0 Vector;
    Changes "changes" (Matrix) 0 Vector;
    Clamp "clamp" (Vector, Scalar, Scalar) 0 Vector;
    ClampMax "clamp_max" (Vector, Scalar) 0 Vector;
    ClampMin "clamp_min" (Vector, Scalar) 0 Vector;
    Cos "cos" (Vector) 0 Vector;
    Cosh "cosh" (Vector) 0 Vector;
    CountOverTime "count_over_time" (Matrix) 0 Vector;
    DayOfMonth "day_of_month" (Vector) 1 Vector;
    DayOfWeek "day_of_week" (Vector) 1 Vector;
    DayOfYear "day_of_year" (Vector) 1 Vector;
    DaysInMonth "days_in_month" (Vector) 1 Vector;
    Deg "deg" (Vector) 0 Vector;
    Delta "delta" (Matrix) 0 Vector;
    Deriv "deriv" (Matrix) 0 Vector;
    DoubleExponentialSmoothing "double_exponential_smoothing" (Matrix, Scalar, Scalar) 0 Vector;
    End "end" () 0 Scalar;
    Exp "exp" (Vector) 0 Vector;
    FirstOverTime "first_over_time" (Matrix) 0 Vector;
    Floor "floor" (Vector) 0 Vector;
    HistogramAvg "histogram_avg" (Vector) 0 Vector;
    HistogramCount "histogram_count" (Vector) 0 Vector;
    HistogramFraction "histogram_fraction" (Scalar, Scalar, Vector) 0 Vector;
    HistogramQuantile "histogram_quantile" (Scalar, Vector) 0 Vector;
    HistogramQuantiles "histogram_quantiles" (Vector, Text, Scalar, Scalar) 9 Vector;
    HistogramStddev "histogram_stddev" (Vector) 0 Vector;
    HistogramStdvar "histogram_stdvar" (Vector) 0 Vector;
    HistogramSum "histogram_sum" (Vector) 0 Vector;
    Hour "hour" (Vector) 1 Vector;
    Idelta "idelta" (Matrix) 0 Vector;
    Increase "increase" (Matrix) 0 Vector;
    Info "info" (Vector, Vector) 1 Vector;
    Irate "irate" (Matrix) 0 Vector;
    LabelJoin "label_join" (Vector, Text, Text, Text) -1 Vector;
    LabelReplace "label_replace" (Vector, Text, Text, Text, Text) 0 Vector;
    LastOverTime "last_over_time" (Matrix) 0 Vector;
    Ln "ln" (Vector) 0 Vector;
    Log10 "log10" (Vector) 0 Vector;
    Log2 "log2" (Vector) 0 Vector;
    MadOverTime "mad_over_time" (Matrix) 0 Vector;
    MaxOf "max_of" (Scalar, Scalar) 0 Scalar;
    MaxOverTime "max_over_time" (Matrix) 0 Vector;
    MinOf "min_of" (Scalar, Scalar) 0 Scalar;
    MinOverTime "min_over_time" (Matrix) 0 Vector;
    Minute "minute" (Vector) 1 Vector;
    Month "month" (Vector) 1 Vector;
    Pi "pi" () 0 Scalar;
    PredictLinear "predict_linear" (Matrix, Scalar) 0 Vector;
    PresentOverTime "present_over_time" (Matrix) 0 Vector;
    QuantileOverTime "quantile_over_time" (Scalar, Matrix) 0 Vector;
    Rad "rad" (Vector) 0 Vector;
    Range "range" () 0 Scalar;
    Rate "rate" (Matrix) 0 Vector;
    Resets "resets" (Matrix) 0 Vector;
    Round "round" (Vector, Scalar) 1 Vector;
    Scalar "scalar" (Vector) 0 Scalar;
    Sgn "sgn" (Vector) 0 Vector;
    Sin "sin" (Vector) 0 Vector;
    Sinh "sinh" (Vector) 0 Vector;
    Sort "sort" (Vector) 0 Vector;
    SortByLabel "sort_by_label" (Vector, Text) -1 Vector;
    SortByLabelDesc "sort_by_label_desc" (Vector, Text) -1 Vector;
    SortDesc "sort_desc" (Vector) 0 Vector;
    Sqrt "sqrt" (Vector) 0 Vector;
    Start "start" () 0 Scalar;
    StartTimestamp "start_timestamp" (Vector) 0 Vector;
    StddevOverTime "stddev_over_time" (Matrix) 0 Vector;
    StdvarOverTime "stdvar_over_time" (Matrix) 0 Vector;
    Step "step" () 0 Scalar;
    SumOverTime "sum_over_time" (Matrix) 0 Vector;
    Tan "tan" (Vector) 0 Vector;
    Tanh "tanh" (Vector) 0 Vector;
    Time "time" () 0 Scalar;
    Timestamp "timestamp" (Vector) 0 Vector;
    TsOfFirstOverTime "ts_of_first_over_time" (Matrix) 0 Vector;
    TsOfLastOverTime "ts_of_last_over_time" (Matrix) 0 Vector;
    TsOfMaxOverTime "ts_of_max_over_time" (Matrix) 0 Vector;
    TsOfMinOverTime "ts_of_min_over_time" (Matrix) 0 Vector;
    Vector "vector" (Scalar) 0 Vector;
    Year "year" (Vector) 1 Vector;
}

impl FunctionId {
    /// The name in a query.
    pub(crate) fn name(self) -> &'static str {
        FUNCTIONS.iter().find(|function| function.id == self).map_or("", |function| function.name)
    }
}

impl Function {
    /// Every function, sorted by name.
    pub fn all() -> &'static [Function] {
        FUNCTIONS
    }

    /// The function `name`. Names are case-sensitive, except for the few that are also keywords.
    pub(crate) fn named(name: &str) -> Option<&'static Function> {
        let idx = FUNCTIONS.binary_search_by(|known| known.name.cmp(name)).ok()?;
        FUNCTIONS.get(idx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_sorted_so_that_each_is_found() {
        assert!(FUNCTIONS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert_eq!(Function::named("rate").map(|f| f.id), Some(FunctionId::Rate));
        assert_eq!(Function::named("Rate"), None);
    }
}
