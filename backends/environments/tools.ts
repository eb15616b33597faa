import { z } from 'zod';
import { present } from '../../core/present.ts';
import { type EffectKind, effectKinds } from '../../core/rl/rollout/effects.ts';
import type { RolloutNotes } from '../../core/rl/rollout/notes.ts';
import { contentOf } from '../../core/rl/rollout/rollout.ts';
import type { ChatMessage, Example, ToolCall, ToolSchema, Turn } from '../../core/rl/rollout/rollout.ts';
import { requireKnownOptions } from './known-options.ts';
import { effectKey, isEffectKind, makeEffect } from './effects.ts';
import { type Conversation, conversing, type Reply } from './shapes.ts';
import type { Dataset, Environment, Rubric } from './types.ts';

export interface Tool {
  readonly schema: ToolSchema;
  /** The answer to the model, even to a wrong call. */
  call(argumentsJson: string, context: ToolContext): Promise<string>;
  /** What is wrong with arguments, as it is answered to the model; null if nothing is. */
  wrong?(argumentsJson: string): string | null;
}

export interface ToolContext {
  readonly example: Example;
  /** Earlier calls of this rollout in order, with their answers: the only memory of a tool. */
  readonly earlier: readonly AnsweredCall[];
  /** Notes of the rollout, in which calls with an effect are written down; missing outside of runs. */
  readonly notes?: RolloutNotes;
  /**
   * In a tool with an effect: unique for this call among all rollouts, and the same when it is made again after a
   * crash. A `keyed` tool gives it to whom it calls.
   */
  readonly idempotencyKey?: string;
}

export interface AnsweredCall {
  readonly call: ToolCall;
  readonly answer: string;
}

/** Thrown by a tool: the model sees the message and may do better. Any other error counts as infrastructure. */
export class ToolError extends Error {
  override readonly name = 'ToolError';
}

interface ToolOptions<Parameters extends z.ZodObject> {
  readonly name: string;
  readonly description: string;
  readonly parameters: Parameters;
  readonly run: (args: z.infer<Parameters>, context: ToolContext) => string | Promise<string>;
}

/** Makes a tool from a typed function. The model sees the names, types and descriptions of its parameters. */
export function tool<Parameters extends z.ZodObject>(options: ToolOptions<Parameters>): Tool {
  requireKnownOptions<ToolOptions<Parameters>>('tool(…)', options, {
    name: true,
    description: true,
    parameters: true,
    run: true,
  });
  const { name, description, parameters, run } = options;
  const { $schema: _, ...jsonSchema } = z.toJSONSchema(parameters, { io: 'input' });
  const read = (argumentsJson: string): z.ZodSafeParseResult<z.infer<Parameters>> =>
    parameters.safeParse(parseJson(argumentsJson));
  const sayWrong = (error: z.ZodError): string =>
    `Error: ${name} was called with wrong arguments.\n${z.prettifyError(error)}`;
  return {
    schema: { type: 'function', function: { name, description, parameters: jsonSchema } },
    wrong(argumentsJson) {
      const parsed = read(argumentsJson);
      return parsed.success ? null : sayWrong(parsed.error);
    },
    async call(argumentsJson, context) {
      const parsed = read(argumentsJson);
      if (!parsed.success) return sayWrong(parsed.error);
      try {
        return await run(parsed.data, context);
      } catch (error) {
        if (error instanceof ToolError) return `Error: ${error.message}`;
        throw error;
      }
    },
  };
}

/**
 * The same tool, whose calls change something outside of the rollout. Each is written down before it is made, and
 * settled with its answer: after a crash a settled one is answered from there. One that was begun and not settled is
 * made again if it is `idempotent`, made again with the same `idempotencyKey` if it is `keyed`, and never made again if
 * it is to be made `once`: the rollout then ends as `in_doubt`, without a reward. A `ToolError` is an answer; any other
 * error leaves open whether it happened.
 */
export function effect(made: Tool, { kind }: { readonly kind: EffectKind }): Tool {
  const { name } = made.schema.function;
  if (!isEffectKind(kind)) {
    throw new TypeError(
      `effect(…) of the tool "${name}": expected the kind ${effectKinds.join(', ')}, received ${String(kind)}.`,
    );
  }
  return {
    ...made,
    async call(argumentsJson, context) {
      const wrong = made.wrong?.(argumentsJson) ?? null;
      if (wrong !== null) return wrong;
      const before = context.earlier.filter(
        ({ call }) => call.name === name && call.arguments === argumentsJson,
      ).length;
      const key = effectKey(name, argumentsJson, before);
      return makeEffect(context.notes, { kind, key, name, arguments: argumentsJson }, (idempotencyKey) =>
        made.call(argumentsJson, { ...context, idempotencyKey }),
      );
    },
  };
}

export interface ToolEnvironmentOptions {
  readonly name: string;
  readonly dataset: Dataset;
  /** Held out: shares no example with `dataset`. */
  readonly evalDataset: Dataset;
  readonly rubric: Rubric;
  readonly tools: readonly Tool[];
  /** Most turns of the policy; calls in the last one get no answer. */
  readonly maxTurns: number;
  /** The assistant's next message for supervised warm-up; calls have the model's written form, see `callText`. */
  readonly demonstrate?: (conversation: Conversation<undefined>, random: () => number) => string;
  /**
   * False = a tool may answer differently to equal calls. The answers to each turn are then written down, and a rollout
   * that resumes after a crash has them again.
   */
  readonly isDeterministic?: boolean;
}

/**
 * An environment where the policy may call tools. Their answers go back as messages of the role `tool`, in the order of
 * the calls; a turn without a call is the final answer. Calls of unknown tools and unfit arguments are reported to the
 * model.
 */
export function toolEnvironment(options: ToolEnvironmentOptions): Environment {
  requireKnownOptions<ToolEnvironmentOptions>('toolEnvironment(…)', options, {
    name: true,
    dataset: true,
    evalDataset: true,
    rubric: true,
    tools: true,
    maxTurns: true,
    demonstrate: true,
    isDeterministic: true,
  });
  const { tools, maxTurns } = options;
  const byName = new Map(tools.map((each) => [each.schema.function.name, each]));
  if (byName.size < tools.length) throw new TypeError(`Environment "${options.name}" has two tools of one name.`);

  async function answer(call: ToolCall, context: ToolContext): Promise<string> {
    const called = byName.get(call.name);
    if (called) return called.call(call.arguments, context);
    return `Error: there is no tool "${call.name}". Those that exist: ${[...byName.keys()].join(', ')}.`;
  }

  const environment = conversing<undefined>({
    ...options,
    tools: tools.map(({ schema }) => schema),
    setup: () => undefined,
    // Tools remember nothing but the conversation.
    ...(options.isDeterministic === false ? { snapshot: () => null, restore: () => undefined } : {}),
    async respond({ example, turns }, notes): Promise<Reply<undefined>> {
      const turn = turns.at(-1)!;
      const { toolCalls = [] } = turn;
      const state = undefined;
      if (toolCalls.length === 0) {
        if (!isBrokenCall(contentOf(turn))) return { state, end: 'ok' };
        return { state, say: [{ role: 'tool', content: brokenCall }] };
      }
      if (turns.length >= maxTurns) return { state, end: 'ok' };
      const earlier = answeredCallsOf(turns);
      const say: ChatMessage[] = [];
      for (const call of toolCalls) {
        const content = await answer(call, { example, earlier, ...present({ notes }) });
        earlier.push({ call, answer: content });
        say.push({ role: 'tool', content });
      }
      return { state, say };
    },
  });
  // There is no state to rebuild, so no tool is called again when a stored rollout is scored.
  return { ...environment, stateAfter: () => undefined };
}

/** Answered calls, in order: each turn's calls with the answers before the next. */
export function answeredCallsOf(turns: readonly Pick<Turn, 'toolCalls' | 'heard'>[]): AnsweredCall[] {
  return turns.flatMap(({ toolCalls = [] }, i) => {
    const answers = (turns[i + 1]?.heard ?? []).filter(({ role }) => role === 'tool');
    return toolCalls.flatMap((call, k) => (answers[k] === undefined ? [] : [{ call, answer: answers[k].content }]));
  });
}

/** Tool calls of a rollout, in order. */
export function toolCallsOf(turns: readonly Turn[]): ToolCall[] {
  return turns.flatMap(({ toolCalls = [] }) => toolCalls);
}

/** A call in the model's form (hermes), for demonstrations. */
export function callText(name: string, args: Readonly<Record<string, unknown>>): string {
  return `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;
}

const brokenCall =
  'Error: this was no tool call. Expected <tool_call>{"name": …, "arguments": {…}}</tool_call> with valid JSON inside.';

function isBrokenCall(text: string): boolean {
  return text.includes('<tool_call>');
}

/** Invalid JSON fits no schema. */
function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}
