import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { Turn } from '../../core/rl/rollout/rollout.ts';
import { callOf } from '../environments/agent/scripted-policy.ts';
import { installNpmPrograms } from './agents/install-npm.ts';
import { liveOnce, type ProgramPlace } from './agents/program.ts';
import { assertTrainedAsSampled } from './agents/trained-tokens.ts';

/** Coding agents of the command line as they come from npm, each by its own API: `npm run test:engines`. */

const found = await installNpmPrograms();
const skip = 'missing' in found ? `no command-line agents here: ${found.missing}` : false;
if (skip) process.stderr.write(`skipped: ${skip}\n`);

interface Program {
  readonly tool: (command: string) => string;
  readonly prepare?: (place: ProgramPlace) => void;
  readonly command: (place: ProgramPlace, modules: string) => { argv: string[]; env: Record<string, string> };
}

const task = 'Write hello into a.txt.';

const programs: Readonly<Record<string, Program>> = {
  "Codex, by OpenAI's responses": {
    tool: (cmd) => callOf('exec_command', { cmd }),
    prepare({ home, openAi }) {
      mkdirSync(path.join(home, '.codex'));
      const provider = `name = "policy"\nbase_url = "${openAi}"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n`;
      const settings = `model = "policy"\nmodel_provider = "policy"\n[model_providers.policy]\n${provider}`;
      writeFileSync(path.join(home, '.codex/config.toml'), `${settings}[analytics]\nenabled = false\n`);
    },
    command: ({ home }, modules) => ({
      argv: [path.join(modules, '.bin/codex'), 'exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', task], // prettier-ignore
      env: { CODEX_HOME: path.join(home, '.codex') },
    }),
  },
  "Claude Code, by Anthropic's messages": {
    tool: (command) => callOf('Bash', { command, description: 'Runs it' }),
    command: (_, modules) => ({
      argv: [path.join(modules, '@anthropic-ai/claude-code-linux-x64/claude'), '-p', task, '--model', 'policy', '--allowedTools', 'Bash'], // prettier-ignore
      env: { IS_SANDBOX: '1', CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1', DISABLE_AUTOUPDATER: '1' },
    }),
  },
};

const commands = ['pwd; ls -la; date', 'echo hello > a.txt', 'cat a.txt; stat a.txt | tail -4'];

for (const [name, { tool, prepare, command }] of Object.entries(programs)) {
  test(`${name}: its rows are token for token what was sampled, and are there after a death`, { skip }, async (t) => {
    assert('modules' in found);
    const { modules } = found;
    const written: string[] = [];
    const says = (prompt: string): string => {
      const turn = prompt.split('<|im_start|>assistant').length - 2;
      return turn < commands.length ? `Step ${turn}.\n${tool(commands[turn]!)}` : 'It is written.';
    };
    const life = (stored: Turn[], killAt?: { readonly turns: number; readonly afterMs: number }) =>
      liveOnce(t, {
        command: (place) => (written.push(path.join(place.folder, 'a.txt')), command(place, modules)),
        ...(prepare ? { prepare } : {}),
        says,
        stored,
        ...(killAt ? { killAt } : {}),
      });
    const undisturbed = await life([]);
    assert.equal(undisturbed.code, 0, undisturbed.output);
    assert.equal(readFileSync(written.at(-1)!, 'utf8'), 'hello\n');
    assertTrainedAsSampled(undisturbed.capture.turns, { rows: 1 });

    const stored: Turn[] = [];
    await life(stored, { turns: 3, afterMs: 100 });
    const before = stored.length;
    const { code, capture } = await life(stored);
    const { recalled, sampled } = capture.calls;
    t.diagnostic(`answered from the store: ${recalled} of ${before}; ${JSON.stringify(capture.setAside()?.first)}`);
    assert.equal(code, 0);
    assert.equal(recalled + sampled, undisturbed.capture.turns.length);
  });
}
