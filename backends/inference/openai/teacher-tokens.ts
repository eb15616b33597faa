import { z } from 'zod';
import { describeAdapter } from '../../../engine/model/adapter-folder.ts';
import { presetFiles } from '../../../engine/model/preset-files.ts';
import { readTextFiles } from '../../../engine/model/text-files.ts';
import { ChatTokenizer } from '../../../engine/model/tokenizer/tokenizer.ts';

/** A token in the policy's vocabulary. */
interface NamedToken {
  readonly id: number;
  readonly text: string;
}

/**
 * Whether a folder of weights, or its adapter's base, has the tokenizer of the policy; null if one of them is not on
 * this machine.
 */
export async function hasSameTokenizer(folder: string, policy: string): Promise<boolean | null> {
  const [its, own] = await Promise.all([tokenizerOf(folder), tokenizerOf(policy)]);
  if (its === null || own === null) return null;
  return JSON.stringify(JSON.parse(its)) === JSON.stringify(JSON.parse(own));
}

async function tokenizerOf(model: string): Promise<string | null> {
  if (model.startsWith('preset:')) return presetFiles(model)['tokenizer.json'] ?? null;
  const { 'tokenizer.json': own } = await readTextFiles(model);
  if (own !== undefined) return own;
  const adapter = await describeAdapter(model);
  return adapter === null ? null : ((await readTextFiles(adapter.baseFolder))['tokenizer.json'] ?? null);
}

const Vocabulary = z.object({
  added_tokens: z.array(z.object({ id: z.int() })).default([]),
  model: z.object({
    vocab: z.union([z.record(z.string(), z.int()), z.array(z.unknown()).transform((all) => all.length)]),
  }),
});

/** Number of tokens that decide whether two vocabularies are equal. */
const tokensLookedAt = 16;

/**
 * A few tokens from the whole policy's vocabulary, the first and the last included; null if its tokenizer is not here,
 * or unreadable.
 */
export async function policyTokens(model: string): Promise<readonly NamedToken[] | null> {
  const files = model.startsWith('preset:') ? presetFiles(model) : await readTextFiles(model);
  const { 'tokenizer.json': tokenizer, 'tokenizer_config.json': config } = files;
  if (tokenizer === undefined || config === undefined) return null;
  const ids = idsIn(tokenizer);
  if (ids.length === 0) return null;
  const own = new ChatTokenizer({ tokenizer, config }, model);
  const last = Math.min(tokensLookedAt, ids.length) - 1;
  return Array.from({ length: last + 1 }, (_, i) => {
    const id = ids[Math.round((i * (ids.length - 1)) / Math.max(1, last))]!;
    return { id, text: own.tokenText(id) };
  });
}

/** Ascending; empty for a tokenizer in another form. */
function idsIn(tokenizer: string): number[] {
  const read = Vocabulary.safeParse(JSON.parse(tokenizer));
  if (!read.success) return [];
  const { added_tokens: added, model } = read.data;
  const ids =
    typeof model.vocab === 'number' ? Array.from({ length: model.vocab }, (_, id) => id) : Object.values(model.vocab);
  return [...new Set([...ids, ...added.map(({ id }) => id)])].toSorted((a, b) => a - b);
}
