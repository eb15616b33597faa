/** One source file, parsed: its lines, functions, imports, exports and comments. */
import path from 'node:path';
import { type Comment, type Expression, parseSync, type Span, Visitor } from 'oxc-parser';

/** Names that one file takes from another; null stands for all of them. */
export interface Import {
  /** Path relative to the root, or a package as it is written. */
  readonly from: string;
  readonly names: readonly string[] | null;
  readonly isType: boolean;
  /** Written as a declaration at the top, in the way that tables of imports mean. */
  readonly isDeclaration: boolean;
}

export interface Export {
  readonly name: string;
  readonly isType: boolean;
  /** Set where the name comes from another file. */
  readonly from?: { readonly file: string; readonly name: string | null };
}

export interface SourceFile {
  readonly file: string;
  readonly codeLines: number;
  readonly commentLines: number;
  /** Code lines of each function that has a block or more than one line. */
  readonly functions: readonly number[];
  readonly imports: readonly Import[];
  readonly exports: readonly Export[];
  /** Files whose names are all exported again. */
  readonly exportsAllOf: readonly string[];
  /** Texts of comments; a run of lines is one comment. */
  readonly comments: readonly string[];
  /** Comparisons with a string of something that is called a kind: the string, and where. */
  readonly kinds: readonly { readonly kind: string; readonly line: number }[];
  readonly conditionalSpreads: number;
  /** Calls by the name of the function. */
  readonly calls: ReadonlyMap<string, number>;
  /** How often each identifier is written; its declaration counts. */
  readonly words: ReadonlyMap<string, number>;
}

export function readSource(file: string, text: string): SourceFile {
  const { program, comments, module, errors } = parseSync(file, text, { preserveParens: false });
  if (errors.length > 0) throw new Error(`${file} cannot be parsed: ${errors[0]!.message}`);
  const lineOf = lineFinder(text);
  const functions: number[] = [];
  const imports: Import[] = [];
  const kinds: { kind: string; line: number }[] = [];
  const calls = new Map<string, number>();
  const words = new Map<string, number>();
  const types = new Set<string>();
  let conditionalSpreads = 0;
  const lines = linesOf(text, comments, lineOf);
  const addFunction = (node: Span, hasBlock: boolean): void => {
    const [first, last] = [lineOf(node.start), lineOf(node.end - 1)];
    if (hasBlock || last > first) functions.push(lines.isCode.slice(first - 1, last).filter(Boolean).length);
  };
  const resolve = (specifier: string): string =>
    specifier.startsWith('.') ? path.posix.join(path.posix.dirname(file), specifier) : specifier;
  const dynamic = (node: Expression | undefined, isType: boolean, names: readonly string[] | null): void => {
    const written = node === undefined ? null : stringOf(node);
    if (written !== null) imports.push({ from: resolve(written), names, isType, isDeclaration: false });
  };
  const reexports = (from: string, isType: boolean): void =>
    void imports.push({ from: resolve(from), names: [], isType, isDeclaration: false });
  const compared = (left: Expression, right: Expression, line: number): void => {
    const kind = stringOf(right);
    if (kind !== null && /(^|\.)\w*[kK]ind$/.test(text.slice(left.start, left.end).replaceAll(/[?!]/g, '')))
      kinds.push({ kind, line });
  };
  new Visitor({
    FunctionDeclaration: (node) => addFunction(node, node.body !== null),
    FunctionExpression: (node) => addFunction(node, node.body !== null),
    ArrowFunctionExpression: (node) => addFunction(node, node.body.type === 'BlockStatement'),
    ImportDeclaration(node) {
      const names = node.specifiers.map((one) =>
        one.type === 'ImportSpecifier'
          ? 'name' in one.imported
            ? one.imported.name
            : one.imported.value
          : one.type === 'ImportDefaultSpecifier'
            ? 'default'
            : null,
      );
      const known = names.filter((name) => name !== null);
      imports.push({
        from: resolve(node.source.value),
        names: known.length === names.length ? known : null,
        isType: node.importKind === 'type',
        isDeclaration: true,
      });
    },
    TSInterfaceDeclaration: (node) => void types.add(node.id.name),
    TSTypeAliasDeclaration: (node) => void types.add(node.id.name),
    ExportNamedDeclaration(node) {
      if (node.exportKind === 'type')
        for (const one of node.specifiers) if ('name' in one.exported) types.add(one.exported.name);
      if (node.source) reexports(node.source.value, node.exportKind === 'type');
    },
    ExportAllDeclaration(node) {
      reexports(node.source.value, node.exportKind === 'type');
    },
    ImportExpression: (node) => dynamic(node.source, false, null),
    TSImportType(node) {
      const [name] = node.qualifier ? text.slice(node.qualifier.start, node.qualifier.end).split('.') : [];
      dynamic(node.source, true, name === undefined ? null : [name]);
    },
    BinaryExpression(node) {
      if (node.operator !== '===' && node.operator !== '!==') return;
      compared(node.left, node.right, lineOf(node.start));
    },
    SpreadElement({ argument }) {
      if (argument.type === 'LogicalExpression' && argument.operator === '&&')
        conditionalSpreads += argument.right.type === 'ObjectExpression' ? 1 : 0;
      if (argument.type !== 'ConditionalExpression') return;
      if (isEmptyObject(argument.consequent) || isEmptyObject(argument.alternate)) conditionalSpreads++;
    },
    CallExpression(node) {
      if (node.callee.type === 'Identifier') count(calls, node.callee.name);
    },
    Identifier: (node) => count(words, node.name),
  }).visit(program);
  const exported: Export[] = [];
  const exportsAllOf: string[] = [];
  for (const { exportName, importName, moduleRequest } of module.staticExports.flatMap(({ entries }) => entries)) {
    const kind: string = exportName.kind;
    const name = kind === 'Default' ? 'default' : exportName.name;
    const from = moduleRequest === null ? null : resolve(moduleRequest.value);
    if (from !== null && name === null) exportsAllOf.push(from);
    if (name === null) continue;
    const isType = types.has(name);
    exported.push({ name, isType, ...(from === null ? {} : { from: { file: from, name: importName.name } }) });
  }
  return {
    file,
    codeLines: lines.isCode.filter(Boolean).length,
    commentLines: lines.comments,
    functions,
    imports,
    exports: exported,
    exportsAllOf,
    comments: joined(text, comments, lineOf),
    kinds,
    conditionalSpreads,
    calls,
    words,
  };
}

/** Says of each line whether code stands on it, and counts the lines with nothing but a comment. */
function linesOf(
  text: string,
  comments: readonly Comment[],
  lineOf: (offset: number) => number,
): { isCode: readonly boolean[]; comments: number } {
  let code = text;
  for (const { start, end } of comments)
    code = code.slice(0, start) + code.slice(start, end).replaceAll(/[^\n]/g, ' ') + code.slice(end);
  const isCode = code.split('\n').map((line) => line.trim() !== '');
  const commented = new Set<number>();
  for (const { start, end } of comments)
    for (let line = lineOf(start); line <= lineOf(end - 1); line++) commented.add(line);
  return { isCode, comments: [...commented].filter((line) => !isCode[line - 1]).length };
}

/** Texts of comments: a block is one, and consecutive line comments are one. */
function joined(text: string, comments: readonly Comment[], lineOf: (offset: number) => number): string[] {
  const found: string[] = [];
  let last: Comment | undefined;
  for (const comment of comments) {
    const isNext =
      last?.type === 'Line' &&
      comment.type === 'Line' &&
      lineOf(comment.start) === lineOf(last.start) + 1 &&
      text.slice(last.end, comment.start).trim() === '';
    const said = comment.value.replaceAll(/^[ \t]*\*+[ \t]?/gm, '').trim();
    if (isNext) found[found.length - 1] += ` ${said}`;
    else found.push(said);
    last = comment;
  }
  return found;
}

const isEmptyObject = (node: Expression): boolean => node.type === 'ObjectExpression' && node.properties.length === 0;

/** Value of a string literal, or of a template without values; null for all else. */
function stringOf(node: Expression): string | null {
  if (node.type === 'Literal' && typeof node.value === 'string') return node.value;
  if (node.type === 'TemplateLiteral' && node.expressions.length === 0) return node.quasis[0]!.value.cooked;
  return null;
}

/** The line of an offset, from 1. */
function lineFinder(text: string): (offset: number) => number {
  const starts = [0, ...[...text.matchAll(/\n/g)].map(({ index }) => index + 1)];
  return (offset) => {
    let [low, high] = [0, starts.length];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (starts[middle]! <= offset) low = middle;
      else high = middle;
    }
    return low + 1;
  };
}

function count(counts: Map<string, number>, name: string): void {
  counts.set(name, (counts.get(name) ?? 0) + 1);
}
