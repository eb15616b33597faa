import { RatchetError } from '../../core/errors.ts';
import { askAnApi, otherPart } from '../../core/rl/message-parts.ts';
import type { Dataset } from './types.ts';

/** The first example whose prompt has a part that is no text, and the type of that part. */
export interface UnlikeText {
  readonly index: number;
  readonly type: string;
}

/** Examples that are looked at of a dataset that does not say it of all. */
const examplesLookedAt = 64;

/** null where all prompts are text, as far as that is known. */
export function unlikeText(dataset: Dataset): UnlikeText | null {
  if (dataset.unlikeText !== undefined) return dataset.unlikeText();
  for (let index = 0; index < Math.min(dataset.length, examplesLookedAt); index++) {
    const type = otherPart(dataset.at(index).prompt);
    if (type !== undefined) return { index, type };
  }
  return null;
}

/** Describes such an example for people. */
export function whatIsShown(name: string, { index, type }: UnlikeText): string {
  return `example ${index} of ${name} has a part of the type ${JSON.stringify(type)}. ${askAnApi.replace('ENV', name)}`;
}

/** Refuses an environment that shows pictures before a model is asked that reads text alone. */
export function requireTextOf(name: string, dataset: Dataset, model: string): void {
  const found = unlikeText(dataset);
  if (found === null) return;
  throw new RatchetError('ConfigInvalid', `${model} reads text alone, and ${whatIsShown(name, found)}`);
}
