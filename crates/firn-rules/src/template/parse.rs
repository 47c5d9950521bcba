//! The parser: from tokens to nodes, with the errors of Go's `text/template`.

use std::collections::BTreeMap;

use firn_promql::go_quote;

use super::lex::{Kind, Lexer, Token, unquote};
use super::node::{Call, Choice, Command, Node, Operand, OperandKind, Pipe, is_empty};
use super::number::Number;
use super::{Result, TemplateError};

/// Actions and parentheses inside each other. The execution recurses over them.
const DEPTH_MAX: usize = 100;

/// The templates of a text by name: the text itself and those that it defines.
pub(super) type Trees = BTreeMap<String, Vec<Node>>;

/// Parses `text`. `is_function` knows the names of functions.
///
/// # Errors
/// Go's message.
pub(super) fn parse(name: &str, text: &str, is_function: fn(&str) -> bool) -> Result<Trees> {
    let mut parser = Parser {
        name,
        lexer: Lexer::new(text),
        buffer: Vec::new(),
        line: 1,
        scope: Scope::default(),
        is_function,
        trees: Trees::new(),
        depth: 0,
    };
    let root = parser.root()?;
    parser.add(name.to_owned(), root)?;
    Ok(parser.trees)
}

struct Parser<'a> {
    name: &'a str,
    lexer: Lexer<'a>,
    /// Tokens that were put back; the last one is next.
    buffer: Vec<Token<'a>>,
    /// The line of the newest token.
    line: usize,
    scope: Scope,
    is_function: fn(&str) -> bool,
    trees: Trees,
    depth: usize,
}

/// The state of one template; each definition has its own.
struct Scope {
    variables: Vec<String>,
    range_depth: usize,
    /// The line of the action that is parsed.
    action_line: Option<usize>,
}

impl Default for Scope {
    fn default() -> Scope {
        Scope { variables: vec!["$".to_owned()], range_depth: 0, action_line: None }
    }
}

/// A node, or the end of the list that contains it.
enum Parsed {
    Node(Node),
    End,
    /// `{{else}}`, or the start of `{{else if`.
    Else,
}

impl Parsed {
    fn text(&self) -> &'static str {
        match self {
            Parsed::Else => "{{else}}",
            _ => "{{end}}",
        }
    }
}

impl<'a> Parser<'a> {
    fn error<T>(&self, why: impl std::fmt::Display) -> Result<T> {
        Err(TemplateError(format!("template: {}:{}: {why}", self.name, self.line)))
    }

    fn unexpected<T>(&self, token: &Token<'_>, context: &str) -> Result<T> {
        if token.kind != Kind::Error {
            return self.error(format!("unexpected {token} in {context}"));
        }
        let other_line = self.scope.action_line.filter(|&line| line != token.line);
        match other_line {
            None => self.error(token),
            Some(line) => {
                // Not "action in action".
                let words = if token.text.ends_with(" action") { "" } else { " in action" };
                self.error(format!("{token}{words} started at {}:{line}", self.name))
            }
        }
    }

    fn next(&mut self) -> Token<'a> {
        self.buffer.pop().unwrap_or_else(|| {
            let token = self.lexer.next_token();
            self.line = token.line;
            token
        })
    }

    fn put_back(&mut self, token: Token<'a>) {
        self.buffer.push(token);
    }

    fn peek(&mut self) -> Kind {
        let token = self.next();
        let kind = token.kind;
        self.put_back(token);
        kind
    }

    fn next_non_space(&mut self) -> Token<'a> {
        loop {
            let token = self.next();
            if token.kind != Kind::Space {
                return token;
            }
        }
    }

    fn peek_non_space(&mut self) -> Token<'a> {
        let token = self.next_non_space();
        self.put_back(token.clone());
        token
    }

    fn expect(&mut self, kind: Kind, context: &str) -> Result<Token<'a>> {
        let token = self.next_non_space();
        if token.kind == kind { Ok(token) } else { self.unexpected(&token, context) }
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= DEPTH_MAX {
            return self.error("max expression depth exceeded");
        }
        self.depth = self.depth.saturating_add(1);
        let parsed = parse(self);
        self.depth = self.depth.saturating_sub(1);
        parsed
    }

    /// Parses a template of its own, without the variables around it.
    fn in_new_scope<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outer = std::mem::take(&mut self.scope);
        let parsed = self.deeper(parse)?;
        self.scope = outer;
        Ok(parsed)
    }

    fn add(&mut self, name: String, nodes: Vec<Node>) -> Result<()> {
        match self.trees.get(&name) {
            Some(tree) if !is_empty(tree) => {
                if !is_empty(&nodes) {
                    let quoted = go_quote(name.as_bytes());
                    return self
                        .error(format!("template: multiple definition of template {quoted}"));
                }
            }
            _ => drop(self.trees.insert(name, nodes)),
        }
        Ok(())
    }

    fn root(&mut self) -> Result<Vec<Node>> {
        let mut nodes = Vec::new();
        while self.peek() != Kind::Eof {
            if self.peek() == Kind::LeftDelim {
                let delimiter = self.next();
                let token = self.next_non_space();
                if token.kind == Kind::Define {
                    self.definition()?;
                    continue;
                }
                self.put_back(token);
                self.put_back(delimiter);
            }
            match self.text_or_action()? {
                Parsed::Node(node) => nodes.push(node),
                end => return self.error(format!("unexpected {}", end.text())),
            }
        }
        Ok(nodes)
    }

    fn definition(&mut self) -> Result<()> {
        const CONTEXT: &str = "define clause";
        self.in_new_scope(|parser| {
            let token = parser.next_non_space();
            let name = parser.template_name(&token, CONTEXT)?;
            parser.expect(Kind::RightDelim, CONTEXT)?;
            let (nodes, end) = parser.list()?;
            match end {
                Parsed::End => parser.add(name, nodes),
                end => parser.error(format!("unexpected {} in {CONTEXT}", end.text())),
            }
        })
    }

    /// Nodes up to `{{end}}` or `{{else}}`.
    fn list(&mut self) -> Result<(Vec<Node>, Parsed)> {
        let mut nodes = Vec::new();
        while self.peek_non_space().kind != Kind::Eof {
            match self.text_or_action()? {
                Parsed::Node(node) => nodes.push(node),
                end => return Ok((nodes, end)),
            }
        }
        self.error("unexpected EOF")
    }

    fn text_or_action(&mut self) -> Result<Parsed> {
        let token = self.next_non_space();
        match token.kind {
            Kind::Text => Ok(Parsed::Node(Node::Text(token.text.into_owned()))),
            Kind::LeftDelim => {
                self.scope.action_line = Some(token.line);
                let parsed = self.action();
                self.scope.action_line = None;
                parsed
            }
            _ => self.unexpected(&token, "input"),
        }
    }

    fn action(&mut self) -> Result<Parsed> {
        let token = self.next_non_space();
        let node = match token.kind {
            Kind::Block => self.block()?,
            Kind::Break => self.jump("{{break}}", Node::Break)?,
            Kind::Continue => self.jump("{{continue}}", Node::Continue)?,
            Kind::Else => {
                if !matches!(self.peek_non_space().kind, Kind::If | Kind::With) {
                    self.expect(Kind::RightDelim, "else")?;
                }
                return Ok(Parsed::Else);
            }
            Kind::End => {
                self.expect(Kind::RightDelim, "end")?;
                return Ok(Parsed::End);
            }
            Kind::If => Node::If(self.choice("if", Kind::If)?),
            Kind::With => Node::With(self.choice("with", Kind::With)?),
            Kind::Range => self.range()?,
            Kind::Template => self.call()?,
            _ => {
                self.put_back(token);
                Node::Action(self.pipe("command", Kind::RightDelim)?)
            }
        };
        Ok(Parsed::Node(node))
    }

    fn jump(&mut self, context: &str, node: Node) -> Result<Node> {
        let token = self.next_non_space();
        if token.kind != Kind::RightDelim {
            return self.unexpected(&token, context);
        }
        match self.scope.range_depth {
            0 => self.error(format!("{context} outside {{{{range}}}}")),
            _ => Ok(node),
        }
    }

    fn choice(&mut self, word: &str, kind: Kind) -> Result<Choice> {
        let variable_count = self.scope.variables.len();
        let choice = self.deeper(|parser| {
            let mut arms = Vec::new();
            loop {
                let pipe = parser.pipe(word, Kind::RightDelim)?;
                let (body, end) = parser.list()?;
                arms.push((pipe, body));
                let otherwise = match end {
                    Parsed::Else if parser.peek() == kind => {
                        parser.next();
                        continue;
                    }
                    Parsed::Else => parser.otherwise()?,
                    _ => Vec::new(),
                };
                return Ok(Choice { arms, otherwise });
            }
        })?;
        self.scope.variables.truncate(variable_count);
        Ok(choice)
    }

    fn range(&mut self) -> Result<Node> {
        let variable_count = self.scope.variables.len();
        let node = self.deeper(|parser| {
            let pipe = parser.pipe("range", Kind::RightDelim)?;
            parser.scope.range_depth = parser.scope.range_depth.saturating_add(1);
            let (body, end) = parser.list()?;
            parser.scope.range_depth = parser.scope.range_depth.saturating_sub(1);
            let otherwise = match end {
                Parsed::Else => parser.otherwise()?,
                _ => Vec::new(),
            };
            Ok(Node::Range { pipe, body, otherwise })
        })?;
        self.scope.variables.truncate(variable_count);
        Ok(node)
    }

    /// The nodes after `{{else}}`.
    fn otherwise(&mut self) -> Result<Vec<Node>> {
        match self.list()? {
            (nodes, Parsed::End) => Ok(nodes),
            (_, end) => self.error(format!("expected end; found {}", end.text())),
        }
    }

    /// A definition that is used at once.
    fn block(&mut self) -> Result<Node> {
        const CONTEXT: &str = "block clause";
        let token = self.next_non_space();
        let name = self.template_name(&token, CONTEXT)?;
        let pipe = self.pipe(CONTEXT, Kind::RightDelim)?;
        self.in_new_scope(|parser| {
            let (nodes, end) = parser.list()?;
            match end {
                Parsed::End => parser.add(name.clone(), nodes),
                end => parser.error(format!("unexpected {} in {CONTEXT}", end.text())),
            }
        })?;
        Ok(Node::Call(Call { at: token.at, name, pipe: Some(pipe) }))
    }

    fn call(&mut self) -> Result<Node> {
        const CONTEXT: &str = "template clause";
        let token = self.next_non_space();
        let name = self.template_name(&token, CONTEXT)?;
        let after = self.next_non_space();
        let pipe = match after.kind {
            Kind::RightDelim => None,
            _ => {
                self.put_back(after);
                Some(self.pipe(CONTEXT, Kind::RightDelim)?)
            }
        };
        Ok(Node::Call(Call { at: token.at, name, pipe }))
    }

    fn template_name(&self, token: &Token<'_>, context: &str) -> Result<String> {
        match token.kind {
            Kind::String | Kind::RawString => self.unquote(token),
            _ => self.unexpected(token, context),
        }
    }

    fn unquote(&self, token: &Token<'_>) -> Result<String> {
        unquote(&token.text).map_or_else(|| self.error("invalid syntax"), Ok)
    }

    /// A pipeline and the token that ends it.
    fn pipe(&mut self, context: &str, end: Kind) -> Result<Pipe> {
        let at = self.peek_non_space().at;
        let mut pipe = Pipe { at, variables: Vec::new(), assigns: false, commands: Vec::new() };
        while self.peek_non_space().kind == Kind::Variable {
            let variable = self.next_non_space();
            let adjacent = self.next();
            let (space, next) = match adjacent.kind {
                Kind::Space => (Some(adjacent), self.next_non_space()),
                _ => (None, adjacent),
            };
            let is_comma = next.kind == Kind::Char && next.text == ",";
            if !is_comma && !matches!(next.kind, Kind::Assign | Kind::Declare) {
                // An operand.
                self.put_back(next);
                space.into_iter().for_each(|space| self.put_back(space));
                self.put_back(variable);
                break;
            }
            let name = variable.text.into_owned();
            self.scope.variables.push(name.clone());
            pipe.variables.push(name);
            if !is_comma {
                pipe.assigns = next.kind == Kind::Assign;
                break;
            }
            if context != "range" || pipe.variables.len() >= 2 {
                return self.error(format!("too many declarations in {context}"));
            }
            let after = self.peek_non_space().kind;
            if !matches!(after, Kind::Variable | Kind::RightDelim | Kind::RightParen) {
                return self.error("range can only initialize variables");
            }
        }
        loop {
            let token = self.next_non_space();
            match token.kind {
                kind if kind == end => {
                    self.check_pipe(&pipe, context)?;
                    return Ok(pipe);
                }
                Kind::Bool
                | Kind::CharConstant
                | Kind::Complex
                | Kind::Dot
                | Kind::Field
                | Kind::Identifier
                | Kind::Number
                | Kind::Nil
                | Kind::RawString
                | Kind::String
                | Kind::Variable
                | Kind::LeftParen => {
                    self.put_back(token);
                    let command = self.command()?;
                    pipe.commands.push(command);
                }
                _ => return self.unexpected(&token, context),
            }
        }
    }

    /// Only the first command may be a constant.
    fn check_pipe(&self, pipe: &Pipe, context: &str) -> Result<()> {
        if pipe.commands.is_empty() {
            return self.error(format!("missing value for {context}"));
        }
        for (stage, command) in (1..).zip(&pipe.commands).skip(1) {
            let is_constant = matches!(
                command.first.kind,
                OperandKind::Bool(_)
                    | OperandKind::Dot
                    | OperandKind::Nil
                    | OperandKind::Number(_)
                    | OperandKind::String { .. }
            );
            if is_constant {
                return self.error(format!("non executable command in pipeline stage {stage}"));
            }
        }
        Ok(())
    }

    /// Operands up to a `|`, which is taken, or up to the end of the pipeline, which is not.
    fn command(&mut self) -> Result<Command> {
        let at = self.peek_non_space().at;
        let mut operands = Vec::new();
        loop {
            operands.extend(self.operand()?);
            let token = self.next();
            match token.kind {
                Kind::Space => continue,
                Kind::RightDelim | Kind::RightParen => self.put_back(token),
                Kind::Pipe => {}
                _ => return self.unexpected(&token, "operand"),
            }
            break;
        }
        let mut operands = operands.into_iter();
        match operands.next() {
            Some(first) => Ok(Command { at, first, arguments: operands.collect() }),
            None => self.error("empty command"),
        }
    }

    /// A term with its fields. `None` if the next token begins none.
    fn operand(&mut self) -> Result<Option<Operand>> {
        let Some(operand) = self.term()? else { return Ok(None) };
        let mut fields = Vec::new();
        let mut at = operand.at;
        loop {
            let token = self.next();
            if token.kind != Kind::Field {
                self.put_back(token);
                break;
            }
            if fields.is_empty() {
                // Go's position of an operand with fields is that of the first one.
                at = token.at;
            }
            fields.push(field_name(&token));
        }
        if fields.is_empty() {
            return Ok(Some(operand));
        }
        let kind = match operand.kind {
            OperandKind::Field(mut names) => {
                names.extend(fields);
                OperandKind::Field(names)
            }
            OperandKind::Variable { name, .. } => OperandKind::Variable { name, fields },
            OperandKind::Identifier(_) | OperandKind::Pipe(_) | OperandKind::Chain { .. } => {
                OperandKind::Chain { of: Box::new(operand), fields }
            }
            _ => {
                let quoted = go_quote(operand.to_string().as_bytes());
                return self.error(format!("unexpected . after term {quoted}"));
            }
        };
        Ok(Some(Operand { at, kind }))
    }

    fn term(&mut self) -> Result<Option<Operand>> {
        let token = self.next_non_space();
        let at = token.at;
        let kind = match token.kind {
            Kind::Identifier => {
                if !(self.is_function)(&token.text) {
                    let quoted = go_quote(token.text.as_bytes());
                    return self.error(format!("function {quoted} not defined"));
                }
                OperandKind::Identifier(token.text.into_owned())
            }
            Kind::Dot => OperandKind::Dot,
            Kind::Nil => OperandKind::Nil,
            Kind::Variable => {
                let name = token.text.into_owned();
                if !self.scope.variables.contains(&name) {
                    let quoted = go_quote(name.as_bytes());
                    return self.error(format!("undefined variable {quoted}"));
                }
                OperandKind::Variable { name, fields: Vec::new() }
            }
            Kind::Field => OperandKind::Field(vec![field_name(&token)]),
            Kind::Bool => OperandKind::Bool(token.text == "true"),
            Kind::CharConstant => {
                let number = Number::parse_char(&token.text).or_else(|why| self.error(why))?;
                OperandKind::Number(number)
            }
            Kind::Number | Kind::Complex => {
                let number = Number::parse(&token.text).or_else(|why| self.error(why))?;
                OperandKind::Number(number)
            }
            Kind::LeftParen => {
                let pipe =
                    self.deeper(|parser| parser.pipe("parenthesized pipeline", Kind::RightParen))?;
                // Go's position of a pipeline is that of its first token.
                return Ok(Some(Operand { at: pipe.at, kind: OperandKind::Pipe(Box::new(pipe)) }));
            }
            Kind::String | Kind::RawString => {
                let text = self.unquote(&token)?.into();
                OperandKind::String { quoted: token.text.into_owned(), text }
            }
            _ => {
                self.put_back(token);
                return Ok(None);
            }
        };
        Ok(Some(Operand { at, kind }))
    }
}

fn field_name(token: &Token<'_>) -> String {
    token.text.strip_prefix('.').unwrap_or(&token.text).to_owned()
}
