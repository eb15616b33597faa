import { z } from 'zod';
import { nearestName } from '../../core/suggest.ts';
import { formatPath, type KeyPath } from '../toml/positions.ts';
import { type JsonValue } from '../run-spec.ts';
import { isTable, type Table } from '../toml/tables.ts';
import { anyNumber, args, atLeastZero, fraction, flag, penalty, positive, text, whole } from '../toml/values.ts';

/** Sampling fields of API requests. Known ones are checked, others pass unchanged. */
const known = {
  max_tokens: whole(1),
  max_completion_tokens: whole(1),
  temperature: atLeastZero(),
  top_p: fraction(),
  top_k: anyNumber(),
  min_p: fraction(),
  min_tokens: whole(0),
  repetition_penalty: positive(),
  presence_penalty: penalty(),
  frequency_penalty: penalty(),
  seed: whole(0),
  n: whole(1),
  stop: z.union([z.string(), z.array(z.string())]).meta({ expected: 'a text or a list of texts' }),
  logprobs: flag(),
  reasoning_effort: text(),
  enable_thinking: flag(),
  extra_body: args(),
};

export const requestSampling = () =>
  z
    .object(known)
    .partial()
    .catchall(z.json())
    .meta({ expected: 'a table of request fields such as max_tokens and temperature' });
export type RequestSampling = Record<string, JsonValue>;

/** The table is free, so a key that only looks misspelt is a warning. */
export function samplingWarnings(sampling: Table, path: KeyPath): string[] {
  return Object.keys(sampling).flatMap((key) => {
    if (Object.hasOwn(known, key)) return [];
    const near = nearestName(key, Object.keys(known));
    return near === undefined
      ? []
      : [`${formatPath([...path, key])} goes into requests as it is; did you mean "${near}"?`];
  });
}

/** Switches of the chat template, which servers read in a separate table. */
const templateSwitches = ['reasoning_effort', 'enable_thinking'] as const;

/** Repeats the chat template's switches where other servers read them, as in verifiers. */
export function withTemplateSwitches(sampling: RequestSampling): RequestSampling {
  const switches = templateSwitches.flatMap((key) => (key in sampling ? [[key, sampling[key]!] as const] : []));
  if (switches.length === 0) return sampling;
  const body = tableOf(sampling['extra_body']);
  const given = tableOf(body['chat_template_kwargs']);
  const chat_template_kwargs = { ...given, ...Object.fromEntries(switches) };
  return { ...sampling, extra_body: { ...body, chat_template_kwargs } };
}

/** Merges two samplings, `extra_body` and its `chat_template_kwargs` key by key. */
export function mergedSampling(base: RequestSampling, over: RequestSampling): RequestSampling {
  const [baseBody, overBody] = [tableOf(base['extra_body']), tableOf(over['extra_body'])];
  const [baseSwitches, overSwitches] = [baseBody, overBody].map((body) => tableOf(body['chat_template_kwargs']));
  const switches = { ...baseSwitches, ...overSwitches };
  const body: RequestSampling = { ...baseBody, ...overBody };
  if (Object.keys(switches).length > 0) body['chat_template_kwargs'] = switches;
  return { ...base, ...over, ...(Object.keys(body).length > 0 ? { extra_body: body } : {}) };
}

function tableOf(value: JsonValue | undefined): RequestSampling {
  return isTable(value) ? value : {};
}
