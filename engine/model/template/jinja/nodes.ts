import type { Value } from './values.ts';

export type BinaryOperator = '+' | '-' | '*' | '/' | '//' | '%' | '**';
export type Comparison = '==' | '!=' | '<' | '<=' | '>' | '>=' | 'in' | 'not in';

export interface CallArguments {
  readonly positional: readonly Expression[];
  readonly named: readonly (readonly [name: string, value: Expression])[];
  /** `*items` and `**map`. */
  readonly spread: Expression | null;
  readonly namedSpread: Expression | null;
}

interface FilterNode {
  readonly kind: 'filter';
  /** null: the text of the block that the filter is written at. */
  readonly of: Expression | null;
  readonly name: string;
  readonly args: CallArguments;
}

interface CallNode {
  readonly kind: 'call';
  readonly callee: Expression;
  readonly args: CallArguments;
}

export type Expression =
  | { readonly kind: 'constant'; readonly value: Value }
  | { readonly kind: 'name'; readonly name: string }
  | { readonly kind: 'tuple' | 'list'; readonly items: readonly Expression[] }
  | { readonly kind: 'dict'; readonly pairs: readonly (readonly [Expression, Expression])[] }
  | {
      readonly kind: 'condition';
      readonly test: Expression;
      readonly value: Expression;
      readonly otherwise: Expression | null;
    }
  | { readonly kind: 'and' | 'or'; readonly left: Expression; readonly right: Expression }
  | { readonly kind: 'not' | 'negative' | 'positive'; readonly of: Expression }
  | {
      readonly kind: 'compare';
      readonly first: Expression;
      readonly rest: readonly (readonly [Comparison, Expression])[];
    }
  | {
      readonly kind: 'binary';
      readonly operator: BinaryOperator;
      readonly left: Expression;
      readonly right: Expression;
    }
  | { readonly kind: 'concat'; readonly items: readonly Expression[] }
  | { readonly kind: 'attribute'; readonly of: Expression; readonly name: string }
  | { readonly kind: 'item'; readonly of: Expression; readonly key: Expression }
  | { readonly kind: 'slice'; readonly of: Expression; readonly bounds: readonly (Expression | null)[] }
  | CallNode
  | FilterNode
  | { readonly kind: 'test'; readonly of: Expression; readonly name: string; readonly args: CallArguments };

export type Target =
  | { readonly kind: 'name'; readonly name: string }
  | { readonly kind: 'member'; readonly of: string; readonly name: string }
  | { readonly kind: 'tuple'; readonly items: readonly Target[] };

export interface Signature {
  readonly names: readonly string[];
  /** Values of the last names. */
  readonly defaults: readonly Expression[];
}

export interface ForNode {
  readonly kind: 'for';
  readonly target: Target;
  readonly over: Expression;
  readonly test: Expression | null;
  readonly isRecursive: boolean;
  readonly body: readonly Statement[];
  readonly otherwise: readonly Statement[];
}

export interface MacroNode {
  readonly kind: 'macro';
  readonly name: string;
  readonly signature: Signature;
  readonly body: readonly Statement[];
  /** Which of `varargs`, `kwargs` and `caller` the body names: a macro takes such arguments only then. */
  readonly takes: ReadonlySet<string>;
}

export type Statement =
  | { readonly kind: 'data'; readonly text: string }
  | { readonly kind: 'output'; readonly items: readonly Expression[] }
  | ForNode
  | {
      readonly kind: 'if';
      readonly branches: readonly (readonly [test: Expression, body: readonly Statement[]])[];
      readonly otherwise: readonly Statement[];
    }
  | { readonly kind: 'set'; readonly target: Target; readonly value: Expression }
  | {
      readonly kind: 'set block';
      readonly target: Target;
      readonly filter: Expression | null;
      readonly body: readonly Statement[];
    }
  | MacroNode
  | { readonly kind: 'call block'; readonly call: CallNode; readonly caller: MacroNode }
  | { readonly kind: 'filter block'; readonly filter: Expression; readonly body: readonly Statement[] }
  | {
      readonly kind: 'with';
      readonly pairs: readonly (readonly [Target, Expression])[];
      readonly body: readonly Statement[];
    }
  | { readonly kind: 'generation'; readonly body: readonly Statement[] }
  | { readonly kind: 'break' | 'continue' };
