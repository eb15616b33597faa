import { orIfDamaged } from '../../store/objects.ts';
import { layout } from '../layout.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { runRecordIn, specIn } from './record-shapes.ts';
import { currentLineage, readHead, type RunPlace, runRecordOf, storeOf } from '../run-access.ts';
import { specSourceIn, type SpecSource } from './spec-source.ts';

/** Settings with which a run last continued, and their source; a null source was not recorded. */
export async function storedSpec(
  run: RunPlace,
): Promise<{ readonly spec: RunSpec; readonly source: SpecSource | null }> {
  const head = await readHead({ ...run, lineage: await currentLineage(run) });
  return head === null ? { spec: await readRunRecord(run), source: null } : specOfCommit(run, head.commit);
}

/** Settings with which a run last continued; with a damaged newest commit, those that it began with. */
export function newestSpec(run: RunPlace): Promise<RunSpec> {
  return orIfDamaged(
    async () => (await storedSpec(run)).spec,
    () => readRunRecord(run),
  );
}

/** Settings of a commit, and their source. */
export async function specOfCommit(
  run: RunPlace,
  { spec: ref }: Pick<StepCommit, 'spec'>,
): Promise<{ readonly spec: RunSpec; readonly source: SpecSource | null }> {
  const store = storeOf(run);
  const source = await store.read(layout.source(ref.key));
  const spec = specIn(await store.get(ref), ref.key);
  return { spec, source: source && specSourceIn(source, layout.source(ref.key)) };
}

/** The settings a run began with. */
export async function readRunRecord(run: RunPlace): Promise<RunSpec> {
  return runRecordIn(await runRecordOf(run), storeOf(run).uri + layout.run());
}

/**
 * Settings of the last start when no commit has them yet: for a run that had made all its steps and waits for a trainer
 * to make more. null without any.
 */
export async function specAskedSince(
  run: RunPlace,
  head: StepCommit,
): Promise<{ readonly spec: RunSpec; readonly source: SpecSource } | null> {
  const store = storeOf(run);
  const keys = (await store.list(layout.allSpecs())).filter((key) => !key.endsWith('.source.json'));
  if (keys.length < 2) return null;
  const asked = await Promise.all(
    keys.map(async (key) => {
      const bytes = await store.read(layout.source(key));
      return bytes === null ? [] : [{ key, source: specSourceIn(bytes, layout.source(key)) }];
    }),
  );
  const byAttempt = asked.flat().sort((a, b) => (a.source.attempt ?? 0) - (b.source.attempt ?? 0));
  const [before, last] = byAttempt.slice(-2);
  if (!before || !last || last.key === head.spec.key) return null;
  if ((before.source.attempt ?? 0) === (last.source.attempt ?? 0)) return null;
  const bytes = await store.read(last.key);
  return bytes && { spec: specIn(bytes, last.key), source: last.source };
}
