import { RatchetError } from '../../core/errors.ts';
import { askAnApi, otherPart } from '../../core/rl/rollout/message-parts.ts';
import type { Dataset } from './types.ts';

/** The first example with a prompt part beside text, and the part's type. */
export interface UnlikeText {
  readonly index: number;
  readonly type: string;
}

/** Number of examples to check in a dataset without a statement about all. */
const examplesLookedAt = 64;

/** null if all prompts are text, as far as known. */
export function unlikeText(dataset: Dataset): UnlikeText | null {
  if (dataset.unlikeText !== undefined) return dataset.unlikeText();
  for (let index = 0; index < Math.min(dataset.length, examplesLookedAt); index++) {
    const type = otherPart(dataset.at(index).prompt);
    if (type !== undefined) return { index, type };
  }
  return null;
}

export function whatIsShown(name: string, { index, type }: UnlikeText): string {
  return `example ${index} of ${name} has a part of the type ${JSON.stringify(type)}. ${askAnApi.replace('ENV', name)}`;
}

/** Refuses an environment with pictures before a model that only reads text is used. */
export function requireTextOf(name: string, dataset: Dataset, model: string): void {
  const found = unlikeText(dataset);
  if (found === null) return;
  throw new RatchetError('ConfigInvalid', `${model} reads text alone, and ${whatIsShown(name, found)}`);
}
