import type { RecordValue, ReflectionRecord } from '../core/gepa/reflection-prompt.ts';
import { reflectionCharsMax } from '../core/limits.ts';
import type { Example, ScoredRollout } from '../core/rl/rollout/rollout.ts';

/**
 * A rollout's fields for the reflection, under verifiers' names: the first question, the answer, the expected answer,
 * the reward, an error, and requested state columns, from its row, its rewards or its example.
 */
export function recordOf(rollout: ScoredRollout, example: Example, stateColumns: readonly string[]): ReflectionRecord {
  const { record = {}, metrics, reward, error } = rollout;
  const stop = record['stop_condition'];
  const columns = stateColumns.map((name): [string, RecordValue] => {
    const value: unknown = record[name] ?? metrics[name] ?? example.info?.[name] ?? null;
    return [name, shortened(value as RecordValue)];
  });
  return {
    query: shortened(example.prompt.find(({ role }) => role === 'user')?.content ?? ''),
    completion: completionOf(rollout),
    ...(example.answer === '' ? {} : { expected_answer: shortened(example.answer) }),
    ...(reward === null ? {} : { reward }),
    ...(error === undefined ? {} : { error: shortened(error) }),
    ...(typeof stop === 'string' ? { stop_condition: stop } : {}),
    ...Object.fromEntries(columns),
  };
}

/** The answer, or the whole conversation after several turns. */
function completionOf({ turns }: ScoredRollout): RecordValue {
  const [first] = turns;
  if (turns.length === 1 && first !== undefined && first.toolCalls === undefined) return shortened(first.text);
  return turns.flatMap(({ heard = [], text, toolCalls }): RecordValue[] => [
    ...heard.map(({ role, content }) => ({ role, content: shortened(content) })),
    {
      role: 'assistant',
      content: shortened(text),
      ...(toolCalls === undefined ? {} : { tool_calls: toolCalls.map((call) => `${call.name}(${call.arguments})`) }),
    },
  ]);
}

/** A trace may be very long; its beginning and its end are the most useful. */
function shortened(value: RecordValue): RecordValue {
  if (typeof value !== 'string' || value.length <= reflectionCharsMax) return value;
  const half = reflectionCharsMax / 2;
  return `${value.slice(0, half)}\n[… ${value.length - reflectionCharsMax} characters left out …]\n${value.slice(-half)}`;
}
