/** Cases of a part in one process, one after the other. See `cli-process.ts`. */
import { ApplicationFailure } from '@temporalio/common';
import { TinkerTrouble } from '../../backends/tinker/trouble.ts';
import { pathToFileURL } from 'node:url';
import { allEvaluations } from '../../cli/eval/find.ts';
import { readEvaluation } from '../../cli/eval/read.ts';
import { forkRun } from '../../runs/lineages/fork-run.ts';
import { storedSpec } from '../../runs/forms/stored-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { withoutControls } from '../../core/steering.ts';
import { randomFrom } from '../config/run-files.ts';
import type { Answered, Asked } from './cli-process.ts';
import { type BadCase, casesOf, type PartName, WronglyTaken } from './part.ts';

const charsKept = 200_000;
const known = new Map<string, readonly BadCase[]>();

process.on('message', (asked: Asked) => void answer(asked));
process.on('disconnect', () => process.exit());
process.send!({ id: -1, code: 0, text: '', chars: 0 } satisfies Answered);

async function answer({ id, args, folder }: Asked): Promise<void> {
  const looked = looks[args[0]!];
  if (looked) {
    const run = (): Promise<string> => looked(args[1]!, folder);
    const outcome = await outcomeOf('answers', { what: args[0]!, run });
    process.send!({ id, ...outcome, chars: outcome.text.length });
    return;
  }
  const [part, seed, index] = args as [PartName, string, string];
  const key = `${part} ${seed}`;
  const cases = known.get(key) ?? (await casesOf(part, randomFrom(Number(seed))));
  known.set(key, cases);
  const outcome = await outcomeOf(part, cases[Number(index)]!);
  process.send!({ id, ...outcome, text: outcome.text.slice(0, charsKept), chars: outcome.text.length });
}

/** Parts of commands that need a terminal, or a run that is trained. */
const looks: Readonly<Record<string, (theirs: string, here: string) => Promise<string>>> = {
  /** The list of `eval tui`. */
  async list(theirs) {
    const { evaluations, incomplete } = await allEvaluations(theirs, {});
    const lines = incomplete.map(({ where, why }) => `${where}: ${why}`);
    for (const found of evaluations) {
      const read = await readEvaluation(found).catch((error: unknown) => {
        if (error instanceof RatchetError) return error;
        throw error;
      });
      lines.push(read instanceof RatchetError ? read.message : `${found.where} ${read.figures.rollouts}`);
    }
    return withoutControls(lines.join('\n'));
  },
  async fork(theirs, here) {
    const from = { name: 'words', store: pathToFileURL(theirs).href };
    const { spec } = await storedSpec(from);
    const store = { uri: pathToFileURL(here).href };
    await forkRun({
      from,
      step: 3,
      source: { config: 'words.toml', overrides: {} },
      spec: { ...spec, name: 'copy', store },
    });
    return 'forked';
  },
};

async function outcomeOf(part: PartName, one: BadCase): Promise<Pick<Answered, 'code' | 'text' | 'isWrong'>> {
  try {
    return { code: 0, text: await one.run() };
  } catch (error) {
    if (error instanceof WronglyTaken) return { code: 0, text: error.message, isWrong: true };
    // Same treatment as where the text is printed, or kept in a history.
    return { code: 1, text: part === 'workflows' ? textOf(error) : withoutControls(textOf(error)) };
  }
}

/** Text for people. An unforeseen error is shown with its trace. */
function textOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const isOurs = error instanceof RatchetError || error instanceof TinkerTrouble || error instanceof ApplicationFailure;
  return isOurs || error.constructor === Error ? error.message : `${error.name}: ${error.stack}`;
}
