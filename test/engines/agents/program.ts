/** Real programs in front of a captured policy: each life in folders of its own, as in a sandbox. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { text } from 'node:stream/consumers';
import type { TestContext } from 'node:test';
import { openCapture } from '../../../backends/environments/agent/capture/capture.ts';
import type { Capture } from '../../../backends/environments/agent/capture/types.ts';
import type { Turn } from '../../../core/rl/rollout/rollout.ts';
import { type Script, scriptedPolicy } from '../../environments/agent/scripted-policy.ts';

export interface ProgramPlace {
  /** Its working folder, and its home. Both go with it. */
  readonly folder: string;
  readonly home: string;
  /** Where OpenAI's routes are, with /v1, and Anthropic's, without. */
  readonly openAi: string;
  readonly anthropic: string;
  readonly key: string;
}

export interface ProgramLife {
  /** null = it was killed. */
  readonly code: number | null;
  readonly output: string;
  readonly capture: Capture;
  /** Requests that were sampled in this life. */
  readonly sampled: number;
}

interface LifeOptions {
  readonly command: (place: ProgramPlace) => {
    readonly argv: readonly string[];
    readonly env?: Record<string, string>;
  };
  readonly prepare?: (place: ProgramPlace) => void;
  readonly says: Script['says'];
  /** Turns of earlier lives; those of this one are added. */
  readonly stored: Turn[];
  /** Most tokens of a turn. */
  readonly maxTokens?: number;
  /** Kills it when so many turns of this life are stored; `afterMs` later, so that it may have heard the last one. */
  readonly killAt?: { readonly turns: number; readonly afterMs: number };
  readonly limitMs?: number;
}

/** One life of a program, to its end or to its death. */
export async function liveOnce(t: TestContext, options: LifeOptions): Promise<ProgramLife> {
  const { command, prepare, says, stored, killAt, maxTokens = 8192, limitMs = 180_000 } = options;
  let child: ChildProcess | undefined;
  let sampled = 0;
  const policy = scriptedPolicy({
    says,
    recorded: [...stored],
    maxTokens,
    onTurn: (turn) => {
      stored.push(turn);
      sampled++;
      if (killAt && sampled >= killAt.turns) setTimeout(() => kill(child), killAt.afterMs);
    },
  });
  const capture = await openCapture({ policy, model: 'policy', aliases: ['*'], signal: new AbortController().signal });
  t.after(() => capture.close());
  const root = mkdtempSync(path.join(os.tmpdir(), 'agent-'));
  t.after(() => rmSync(root, { recursive: true, force: true }));
  const url = `http://127.0.0.1:${await capture.listenOnLoopback()}`;
  const place = {
    folder: path.join(root, 'work'),
    home: path.join(root, 'home'),
    openAi: `${url}/v1`,
    anthropic: url,
    key: capture.key,
  };
  mkdirSync(place.folder);
  mkdirSync(place.home);
  prepare?.(place);
  const { argv, env = {} } = command(place);
  child = spawn(argv[0]!, argv.slice(1), {
    cwd: place.folder,
    env: {
      PATH: process.env['PATH'],
      HOME: place.home,
      LANG: 'C.UTF-8',
      OPENAI_BASE_URL: place.openAi,
      OPENAI_API_KEY: place.key,
      ANTHROPIC_BASE_URL: place.anthropic,
      ANTHROPIC_API_KEY: place.key,
      ...env,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true, // a group of its own, which is killed as one
  });
  const limit = setTimeout(() => kill(child), limitMs);
  const said = Promise.all([text(child.stdout!), text(child.stderr!)]);
  const [code] = (await once(child, 'exit')) as [number | null];
  clearTimeout(limit);
  kill(child);
  const [out, err] = await said;
  await capture.close();
  return { code, output: `${out}\n${err}`, capture, sampled };
}

/** Its children as well. */
function kill(child: ChildProcess | undefined): void {
  try {
    if (child?.pid !== undefined) process.kill(-child.pid, 'SIGKILL');
  } catch {
    // it is gone
  }
}
