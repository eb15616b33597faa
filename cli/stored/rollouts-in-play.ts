import { RatchetError } from '../../core/errors.ts';
import { listInPlay } from '../../runs/progress/listed-rollouts.ts';
import { progressOf } from '../../runs/progress/rollout-progress.ts';
import { describeList, describeRollout } from '../describe/rollouts-in-play.ts';
import { print, printJson } from '../output/print.ts';
import { readCount } from '../typed/read-count.ts';
import { findRunFolder } from './run-place.ts';

interface Shown {
  readonly store?: string;
  readonly json?: true;
}

/** `ratchet status RUN --rollouts` */
export async function showRollouts(
  run: string,
  { environment, limit }: { readonly environment: string | undefined; readonly limit: string },
  { store, json }: Shown,
): Promise<void> {
  const looked = { environment, limit: readCount('--limit', limit) };
  const list = await listInPlay(await findRunFolder(run, store), looked);
  if (json) printJson(list, 2);
  else for (const line of describeList(run, list, Date.now())) print(line);
}

/** `ratchet status RUN --rollout GROUP/INDEX` */
export async function showRollout(run: string, place: string, { store, json }: Shown): Promise<void> {
  const progress = await progressOf(await findRunFolder(run, store), placeIn(place));
  if (json) printJson(progress, 2);
  else for (const line of describeRollout(run, progress, Date.now())) print(line);
}

function placeIn(text: string): { readonly group: number; readonly index: number } {
  const [, group, index] = /^(\d{1,15})\/(\d{1,15})$/.exec(text) ?? [];
  if (group !== undefined && index !== undefined) return { group: Number(group), index: Number(index) };
  throw new RatchetError(
    'ConfigInvalid',
    `--rollout: expected a group and an index, as in --rollout 12/3; got ${JSON.stringify(text)}.`,
  );
}
