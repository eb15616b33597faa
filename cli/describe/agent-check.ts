import path from 'node:path';
import type { RunSpec } from '../../config/run-spec.ts';
import type { ProgramSpec } from '../../config/settings/agents.ts';
import { sandboxTraits } from '../../core/kinds/sandboxes.ts';
import { RatchetError } from '../../core/errors.ts';
import { whereItFailed } from '../../core/rl/failures.ts';
import type { ScoredRollout } from '../../core/rl/rollout/rollout.ts';
import { openEnvironment } from '../../backends/environments/index.ts';
import { playAndScore, scriptedPolicy } from '../../backends/environments/scripted.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';

interface CheckedAgent {
  readonly name: string;
  readonly ok: boolean;
  readonly tasks: number;
  readonly heldOut: number;
  readonly outcome: string;
  readonly reward: number | null;
  readonly turns: number;
  readonly error?: string;
}

/** Whether a word names a run file and not an environment. */
export function isRunFile(given: string): boolean {
  return given.endsWith('.toml');
}

/**
 * The agents of a run file: what each is, what becomes of its rollouts when something dies, and one of its tasks, played
 * in a sandbox with answers that are made up. Its program is run.
 */
export async function checkAgents(
  file: string,
  { plays }: { readonly plays: boolean },
): Promise<{ readonly ok: boolean; readonly lines: readonly string[]; readonly agents: readonly CheckedAgent[] }> {
  const { spec } = await loadRunConfig(file, { projectFolder: process.cwd() });
  const entries = spec.environments.filter(({ program }) => program !== undefined);
  if (entries.length === 0) {
    throw new RatchetError(
      'ConfigInvalid',
      `${file}: expected an [[env]] with kind = "agent"; it has ${spec.environments.map(({ id }) => id).join(', ')}. To look at those: npx ratchet-rl env info ID`,
    );
  }
  const checked = [];
  for (const entry of entries) checked.push(await checkAgent(entry, plays));
  return {
    ok: checked.every(({ agent }) => agent.ok),
    lines: checked.flatMap(({ lines }) => lines),
    agents: checked.map(({ agent }) => agent),
  };
}

async function checkAgent(
  entry: RunSpec['environments'][number],
  plays: boolean,
): Promise<{ readonly agent: CheckedAgent; readonly lines: readonly string[] }> {
  const { name } = entry;
  const program = entry.program!;
  const environment = await openEnvironment(entry);
  const { dataset, evalDataset } = environment;
  const about = [
    `${name}  (agent: ${program.command.join(' ')})`,
    `  tasks         ${dataset.length} to train on, ${evalDataset.length} held out`,
    `  sandbox       ${sandboxLine(program)}`,
    `  score         ${scoreLine(program)}`,
    `  after a death ${deathLine(program)}`,
  ];
  const known = { name, tasks: dataset.length, heldOut: evalDataset.length };
  if (!plays) return { agent: { ...known, ok: true, outcome: '', reward: null, turns: 0 }, lines: about };
  const rollout = await playAndScore(
    environment,
    dataset.at(0),
    scriptedPolicy(() => 'an answer that is made up'),
  );
  const { outcome, reward, error, turns } = rollout;
  const agent = { ...known, ok: reward !== null, outcome, reward, turns: turns.length, ...(error === undefined ? {} : { error }) }; // prettier-ignore
  return { agent, lines: [...about, ...playedLines(rollout)] };
}

function sandboxLine({ sandbox: { pool, memoryMb, diskMb, network, setup } }: ProgramSpec): string {
  const { is } = sandboxTraits(pool.provider);
  const reach =
    network === 'route' ? 'nothing is reachable but the address of its rollout' : 'it reaches what its machine reaches';
  return `${is}, ${memoryMb} MiB of memory, ${diskMb} MiB to write; ${reach}${setup ? `; set up by ${setup.join(' ')}` : ''}`;
}

function scoreLine({ score }: ProgramSpec): string {
  if (score.command !== null) return `${score.command.join(' ')}, in the sandbox, before that ends`;
  if (score.function !== null)
    return `${score.function.name} of ${path.basename(score.function.path)}, from what is stored`;
  return `the judge ${score.judge?.model ?? ''}, from what is stored`;
}

/** Which of the ways back an agent has, and what a death costs there. */
function deathLine({ sandbox, isDeterministic, resume }: ProgramSpec): string {
  if (resume !== null) {
    const often = resume.every === 1 ? 'each turn' : `${resume.every} turns`;
    return `goes on from its state: ${resume.command.join(' ')} in the newest snapshot of its sandbox, which is taken after ${often}. Turns before it are kept, and those after it are answered from the store where the calls are the same. That costs the time since the snapshot, and the turn under way`;
  }
  const { snapshots } = sandboxTraits(sandbox.pool.provider);
  const where =
    sandbox.setup !== null && sandbox.snapshot && snapshots ? 'the snapshot after its set-up' : 'a fresh sandbox';
  const same = isDeterministic ? '' : ', as long as it makes the same calls';
  return `replay of calls: it starts again in ${where}; calls that it had finished are answered from the store${same}. That costs the time of its own work between them, and no token`;
}

function playedLines({ outcome, reward, metrics, error, turns, program }: ScoredRollout): string[] {
  const seconds = program ? `${program.setupS} s until its sandbox was there, ${program.seconds} s of the program` : '';
  const calls = `${turns.length} ${turns.length === 1 ? 'call' : 'calls'} of the policy`;
  const measured = Object.entries(metrics).map(([key, value]) => `${key} ${Math.round(value * 1000) / 1000}`);
  const also = measured.length === 0 ? '' : `   (${measured.join(', ')})`;
  const result = reward === null ? `${outcome}, no reward: ${whereItFailed(error ?? '')}` : `${outcome}, reward ${reward}${also}`; // prettier-ignore
  const printed = program
    ? (['stdout', 'stderr'] as const).flatMap((stream) => {
        const text = program[stream].trimEnd();
        return text === '' || error?.endsWith(text)
          ? []
          : [`  ${stream}:`, ...text.split('\n').map((line) => `    ${line}`)];
      })
    : [];
  return ['', `Task 0, with answers that are made up: ${calls}${seconds === '' ? '' : `; ${seconds}`}`, `  ${result}`, ...printed]; // prettier-ignore
}
