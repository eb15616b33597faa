import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { trajectoryRows } from '../../core/rl/rollout/trajectories.ts';
import { callOf } from '../environments/agent/scripted-policy.ts';
import { canSandbox, missingSandbox } from '../environments/sandbox-here.ts';
import { installNpmPrograms } from './agents/install-npm.ts';
import { foldersOf, installMiniSweAgent, installOpenAiAgents } from './agents/install-python.ts';
import { playResumed, type ResumedProgram } from './agents/resumed-program.ts';

/** Real programs that go on in a snapshot of their sandbox by `[env.resume]`: `npm run test:engines`. docs/guide/agents.md names the commands. */

const here = await canSandbox();
const [mini, openAi, npm] = [await installMiniSweAgent(), await installOpenAiAgents(), await installNpmPrograms()];
const fileOf = (name: string): string => readFileSync(new URL(`agents/${name}`, import.meta.url), 'utf8');

/** Each step's effect on the sandbox is a line that no other life would write. */
const command = (step: number): string => `echo ${step} $(head -c 6 /dev/urandom | od -An -tx1) >> log; cat log`;
const steps = [1, 2, 3, 4];
const asking = (tool: string, named: (step: number) => object, last = 'Done.'): string[] => [
  ...steps.map((step) => `Step ${step}.\n${callOf(tool, named(step))}`),
  last,
];

interface Case {
  readonly installed: { readonly missing: string } | object;
  readonly program: () => ResumedProgram;
  /** What it says to the model when it goes on. */
  readonly goesOn?: string;
}

const goesOn = 'Go on.';

test('the agent class that the guide shows is the one that is tried here', () => {
  const guide = readFileSync(new URL('../../docs/guide/agents.md', import.meta.url), 'utf8');
  assert.ok(guide.includes(fileOf('resuming_mini.py')));
});

const cases: Readonly<Record<string, Case>> = {
  'mini-swe-agent, by a class of the user’s': {
    installed: mini,
    program() {
      assert('python' in mini);
      const env = ['PYTHONPATH=.', 'MSWEA_CONFIGURED=true', 'MSWEA_COST_TRACKING=ignore_errors', 'MSWEA_GLOBAL_CONFIG_DIR=/work', 'LITELLM_LOCAL_MODEL_COST_MAP=True']; // prettier-ignore
      const program = path.join(path.dirname(mini.python), 'mini');
      const argv = ['env', ...env, program, '-y', '--exit-immediately', '-t', 'Count.', '-m', 'openai/policy', '-o', 'trajectory.json', '--agent-class', 'resuming_mini.ResumingAgent']; // prettier-ignore
      return {
        command: argv,
        resume: argv,
        files: { 'resuming_mini.py': fileOf('resuming_mini.py') },
        folders: foldersOf(mini.python),
        answers: asking('bash', (step) => ({ command: command(step) }), callOf('bash', { command: 'echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT' })), // prettier-ignore
      };
    },
  },
  ...Object.fromEntries(
    ['chat', 'responses'].map((api) => [
      `openai-agents by ${api}, by its session`,
      {
        installed: openAi,
        program() {
          assert('python' in openAi);
          const argv = [openAi.python, 'session.py', api];
          return {
            command: argv,
            resume: [...argv, '--resume'],
            files: { 'session.py': fileOf('openai_agents_session.py') },
            folders: foldersOf(openAi.python),
            answers: asking('note', (step) => ({ word: String(step) })),
          };
        },
      },
    ]),
  ),
  'Codex, by resume --last': {
    installed: npm,
    goesOn,
    program() {
      assert('modules' in npm);
      const provider = `name = "policy"\nbase_url = "http://127.0.0.1:4010/v1"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n`;
      const settings = `model = "policy"\nmodel_provider = "policy"\n[model_providers.policy]\n${provider}[analytics]\nenabled = false\n`;
      const codex = (...args: string[]): string[] =>
        [path.join(npm.modules, '.bin/codex'), 'exec', ...args, '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox']; // prettier-ignore
      return {
        command: codex('Count.'),
        resume: codex('resume', '--last', goesOn),
        files: { '.codex/config.toml': settings },
        folders: [npm.modules],
        answers: asking('exec_command', (step) => ({ cmd: command(step) })),
      };
    },
  },
  'Claude Code, by --continue': {
    installed: npm,
    goesOn,
    program() {
      assert('modules' in npm);
      const program = path.join(npm.modules, '@anthropic-ai/claude-code-linux-x64/claude');
      const claude = (...args: string[]): string[] =>
        ['env', 'IS_SANDBOX=1', 'CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1', 'DISABLE_AUTOUPDATER=1', program, '-p', ...args, '--model', 'policy', '--allowedTools', 'Bash']; // prettier-ignore
      return {
        command: claude('Count.'),
        resume: claude('--continue', goesOn),
        delayS: 1,
        folders: [npm.modules],
        answers: asking('Bash', (step) => ({ command: command(step), description: 'Runs it' })),
      };
    },
  },
};

for (const [name, { installed, program, goesOn: words }] of Object.entries(cases)) {
  const missing = 'missing' in installed ? installed.missing : here ? null : missingSandbox;
  const skip = missing === null ? false : `${name}: ${missing}`;
  if (skip) process.stderr.write(`skipped: ${skip}\n`);
  test(
    `${name}: killed in two of its turns, samples none of them again and goes on with its work`,
    { skip },
    async (t) => {
      const killedIn = [3, 4];
      const { record, sampled } = await playResumed(t, program(), killedIn);
      assert.equal(record.outcome, 'ok', record.error);
      const { turns, program: run } = record;
      assert.deepEqual([turns.length, sampled], [steps.length + 1, steps.length + 1]);
      assert.deepEqual([run!.calls.kept, run!.calls.recalled, run!.setAside], [3, 0, undefined]);
      const log = run!.files!['log']!.trim().split('\n');
      assert.deepEqual(log.map((line) => line[0]), steps.map(String), 'each step was done once'); // prettier-ignore
      const heard = turns.flatMap((turn) => turn.heard ?? []);
      const outputs = heard.filter(({ role }) => role === 'tool').map(({ content }) => content);
      assert.ok(
        log.every((line, i) => outputs[i]!.includes(line)),
        'the model was told of each',
      );
      assert.equal(heard.filter(({ content }) => content === goesOn).length, words === undefined ? 0 : killedIn.length);
      assert.equal(trajectoryRows(turns, 'interleaved').length, 1, 'its turns are one conversation');
    },
  );
}
