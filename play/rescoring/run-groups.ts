import type { StoredRescore } from '../../core/eval/rescore.ts';
import { groupSizeOf } from '../../core/rl/learning/selection.ts';
import { settleRollout, needsVocabulary } from '../../core/rl/rollout/settle-rollout.ts';
import { rowsOfRound } from '../../core/rl/rollout/results.ts';
import type { ChatMessage, Example, RolloutRow, ScoredGroup, ScoredRollout } from '../../core/rl/rollout/rollout.ts';
import { readMessage } from '../../core/rl/rollout/message-parts.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { withoutScore } from '../../core/rl/rollout/without-score.ts';
import { withSystemPrompt } from '../../core/rl/rollout/system-prompt.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { RatchetError } from '../../core/errors.ts';
import { rowLike } from '../../store/objects.ts';
import { layout, lineageOf, stepOf } from '../../runs/layout.ts';
import { currentLineage, requireCommit, type RunPlace, specOf, storeOf } from '../../runs/run-access.ts';
import { type BesideScored, besideScored } from '../../runs/rescores/scored-keys.ts';
import { scoredGroupsIn } from '../../runs/rollouts/scored-groups.ts';
import { vocabularySizeOf } from '../../runs/rollouts/vocabulary.ts';
import type { StoredGroup } from './stored-group.ts';

type OfRun = Extract<StoredRescore['of'], { readonly kind: 'run' }>;

/** Groups of a run in the scored objects of one chunk, in their order; one is in memory at a time. */
export async function* groupsOfRun(
  { input, of }: { readonly input: StoredRescore['input']; readonly of: OfRun },
  chunk: number,
  open: (environment: string) => Promise<Environment>,
): AsyncGenerator<StoredGroup> {
  if (input.subject.kind !== 'run') throw new Error('the rollouts of an evaluation are in no scored object');
  const run: RunPlace = { name: input.subject.name, store: input.subject.store };
  const spec = await specOf({ ...run, spec: of.spec, lineage: '', attempt: 1 });
  const settle = settling(run, spec);
  for (const key of of.chunks[chunk]!) {
    const store = storeOf(run);
    const bytes = await store.read(key);
    if (bytes === null) throw gone(store.uri + key);
    const beside = new Map<string, Promise<BesideScored>>();
    for await (const group of scoredGroupsIn(bytes, store.uri + key)) {
      const { environment } = group;
      const found = beside.get(environment) ?? besideScored(run, key, environment);
      beside.set(environment, found);
      yield storedGroup({ run, spec, key, group, beside: await found, open, settle });
    }
  }
}

interface GroupOf {
  readonly run: RunPlace;
  readonly spec: RunSpec;
  readonly key: string;
  readonly group: ScoredGroup;
  readonly beside: BesideScored;
  readonly open: (environment: string) => Promise<Environment>;
  readonly settle: (rollout: ScoredRollout) => Promise<ScoredRollout>;
}

function storedGroup({ run, spec, key, group, beside, open, settle }: GroupOf): StoredGroup {
  const { environment, ordinal, exampleId } = group;
  const step = stepOf(key)!;
  const records = beside.records.filter((record) => record.group === ordinal);
  const recordOf = new Map(records.map(({ index, record }) => [index, record]));
  const rollouts = group.rollouts.map((rollout): ScoredRollout => {
    const record = recordOf.get(rollout.index);
    return record === undefined ? rollout : { ...rollout, record };
  });
  const example = async (): Promise<Example> => {
    const record = records[0]?.record;
    const known = group.example ?? (record && exampleOfRow(record, exampleId));
    if (known) return known;
    const { dataset } = await open(environment);
    return withSystemPrompt(dataset.at(exampleId), await systemPromptOf(run, group));
  };
  return {
    lineage: lineageOf(key),
    step,
    environment,
    group: ordinal,
    exampleId,
    dataset: 'dataset',
    isIndependent: false,
    rolloutsPerExample: groupSizeOf(spec, environment),
    rollouts,
    unscored: withoutScore,
    example,
    settle,
    rows: async (rescored) => {
      const groups = [{ ...group, example: await example(), rollouts: rescored }];
      return rowsOfRound(groups, { step, records, tools: beside.tools, like: rowLike });
    },
  };
}

/** As the rollout was settled for training, with the filters of single rollouts. */
function settling(run: RunPlace, spec: RunSpec): GroupOf['settle'] {
  let vocabulary: Promise<number> | undefined;
  const sizeOf = async (): Promise<number> => {
    if (!needsVocabulary(spec)) return 0;
    const here = { ...run, lineage: await currentLineage(run) };
    const { commit } = await requireCommit(here, 0);
    return vocabularySizeOf({ ...here, spec: commit.spec, attempt: 1 }, commit.policy);
  };
  return async (rollout) => {
    const { record: _, ...kept } = settleRollout(rollout, spec, await (vocabulary ??= sizeOf()));
    return kept;
  };
}

/** The example that a row of the environment's own says: it has its prompt, answer and info. */
export function exampleOfRow(row: RolloutRow, id: number): Example | undefined {
  const { prompt, answer, info } = row;
  if (!Array.isArray(prompt)) return undefined;
  const isTable = typeof info === 'object' && info !== null && !Array.isArray(info);
  return {
    id,
    prompt: (prompt as unknown as ChatMessage[]).map(readMessage),
    answer: typeof answer === 'string' ? answer : '',
    ...(isTable ? { info } : {}),
  };
}

async function systemPromptOf(run: RunPlace, { prompt }: ScoredGroup): Promise<string | undefined> {
  if (prompt === undefined) return undefined;
  const bytes = await storeOf(run).read(layout.prompt(prompt));
  return bytes === null ? undefined : Buffer.from(bytes).toString('utf8');
}

function gone(where: string): RatchetError {
  return new RatchetError(
    'CheckpointDamaged',
    `${where} went away while it was rescored (npx ratchet-rl gc removes old rollouts). Type the command again for the steps that are left: --steps FIRST-LAST.`,
  );
}
