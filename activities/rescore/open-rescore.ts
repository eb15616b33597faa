import type { RescoreHandle, RescoreInput, StoredRescore } from '../../core/eval/rescore.ts';
import { RatchetError } from '../../core/errors.ts';
import type { Environments } from '../../backends/environments/index.ts';
import { openRubrics } from '../../play/rescoring/opened-rubrics.ts';
import { sha256 } from '../../store/file-store.ts';
import { showStoreUri } from '../../store/index.ts';
import { newestAttempt } from '../../runs/evaluations/evaluation-store.ts';
import { decodeStored, encodeStored } from '../../runs/forms/stored-forms.ts';
import { rescoreKeys } from '../../runs/rescores/rescore-store.ts';
import { chunksOfKeys, scoredKeysOf } from '../../runs/rescores/scored-keys.ts';
import { currentLineage, readHead, type RunPlace, storeOf } from '../../runs/run-access.ts';
import { withHeartbeat } from '../around/heartbeat.ts';

/**
 * Opens a rescore: refuses rubrics that cannot score what is stored, and writes down which rollouts it is about.
 * Idempotent: what was written first stays, so a rescore that is opened again continues.
 */
export const createOpenRescore =
  ({ codeVersion, environments }: { readonly codeVersion: string; readonly environments?: Environments }) =>
  async ({ input }: { readonly input: RescoreInput }): Promise<RescoreHandle> =>
    withHeartbeat(async () => {
      const place = input.results;
      const { rubricOf } = openRubrics(environments, input, { place });
      for (const { name } of input.environments) await rubricOf(name);
      const key = rescoreKeys.rescore(place);
      const store = storeOf(place);
      const known = await store.read(key);
      const bytes = known ?? (await store.putIfAbsent(key, encodeStored(key, await begun(input, codeVersion)))).bytes;
      const stored = decodeStored<StoredRescore>(bytes, key);
      return {
        place,
        spec: { key, sha256: sha256(bytes), bytes: bytes.byteLength },
        name: nameOf(input),
        rubric: rubricName(input),
        chunks: stored.of.kind === 'run' ? stored.of.chunks.length : stored.of.chunks,
        warnings: [],
      };
    });

async function begun(input: RescoreInput, codeVersion: string): Promise<StoredRescore> {
  const of = input.subject.kind === 'run' ? await ofRun(input.subject) : await ofEvaluation(input.subject.place);
  return { schemaVersion: 1, input, of, openedAt: new Date().toISOString(), codeVersion };
}

async function ofRun({
  name,
  store,
  steps,
}: Extract<RescoreInput['subject'], { readonly kind: 'run' }>): Promise<StoredRescore['of']> {
  const run: RunPlace = { name, store };
  const here = { ...run, lineage: await currentLineage(run) };
  const head = await readHead(here);
  const keys = head === null ? [] : await scoredKeysOf(here, steps);
  if (head === null || keys.length === 0)
    throw new RatchetError(
      'ConfigInvalid',
      `${name} has no stored rollouts of steps ${steps.first} to ${steps.last}: none were sampled for them, or npx ratchet-rl gc removed them. npx ratchet-rl status ${name} says how far it is.`,
    );
  return { kind: 'run', spec: head.commit.spec, chunks: chunksOfKeys(keys) };
}

async function ofEvaluation(place: RescoreInput['results']): Promise<StoredRescore['of']> {
  const found = await newestAttempt(place);
  if (found === null)
    throw new RatchetError(
      'ConfigInvalid',
      `${showStoreUri(storeOf(place).uri)}${place.prefix} is no evaluation of Ratchet's: it has no evaluation/attempt_1.json.`,
    );
  const { examples, chunkExamples, attempt } = found.evaluation;
  return { kind: 'evaluation', attempt, spec: found.ref, chunks: Math.ceil(examples / chunkExamples) };
}

/** Names what is rescored, and by what, in messages. */
function nameOf({ subject }: RescoreInput): string {
  if (subject.kind === 'evaluation') return `${subject.place.name}${subject.place.prefix === '' ? '' : `/${subject.place.prefix.replace(/\/$/, '')}`}`; // prettier-ignore
  const { first, last } = subject.steps;
  return `${subject.name} steps ${first}–${last}`;
}

function rubricName({ rubric }: RescoreInput): string {
  return rubric === null ? 'their own rubric' : rubric.name;
}
