import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { program } from '../../cli/commands.ts';
import { inOurCommands } from '../../cli/typed/pasted-command.ts';

const read = (line: string): string => inOurCommands(line.split(' ')).join(' ');

describe('a command of another tool, pasted behind `ratchet`, is read as ours', () => {
  const pasted: Readonly<Record<string, string>> = {
    'uv run rl @ configs/prime-rl/my-config.toml --trainer.ckpt.resume-step 50':
      'rl @ configs/prime-rl/my-config.toml --trainer.ckpt.resume-step 50',
    'uv run --no-sync --with x==1 prime-rl @ F': 'prime-rl @ F',
    'uv run vf-rl @ configs/vf-rl/wiki-search.toml': 'vf-rl @ configs/vf-rl/wiki-search.toml',
    'uv run eval --weights-dir outputs/weights --steps 10': 'eval --weights-dir outputs/weights --steps 10',
    'prime eval run my-env -m gpt-5-nano -p openai': 'eval run my-env -m gpt-5-nano -p openai',
    'prime eval my-env -m gpt-5-nano': 'eval run my-env -m gpt-5-nano',
    'prime eval tui': 'eval tui',
    'prime gepa run wiki-search --model m': 'gepa run wiki-search --model m',
    'prime lab setup --prime-rl': 'lab setup --prime-rl',
    'prime env install my-env': 'env install my-env',
    'prime rl run configs/rl/gsm8k.toml': 'train configs/rl/gsm8k.toml',
    'prime train configs/rl/gsm8k.toml': 'train configs/rl/gsm8k.toml',
    'uvx prime eval run x': 'eval run x',
    'uv run vf-eval gsm8k -n 5': 'eval run gsm8k -n 5',
    'npx ratchet-rl train x.toml': 'train x.toml',
    'train x.toml': 'train x.toml',
  };
  for (const [line, ours] of Object.entries(pasted)) test(line, () => assert.equal(read(line), ours));

  test('whatever a command of both can do here', async () => {
    for (const name of ['eval', 'gepa', 'env', 'lab']) {
      const command = (await program(name, '0')).commands.find((one) => one.name() === name)!;
      assert.ok(command.commands.length > 0, name);
      for (const one of command.commands) assert.equal(read(`prime ${name} ${one.name()}`), `${name} ${one.name()}`);
    }
  });
});

describe('what has no counterpart is refused, with what to type', () => {
  const refused: Readonly<Record<string, RegExp>> = {
    'orchestrator @ F.toml': /npx ratchet-rl rl @ F\.toml.*--orchestrator @ F\.toml.*worker --role orchestrator/,
    'uv run trainer @ F.toml': /worker --role train /,
    'inference @ F.toml': /worker --role rollout/,
    'CUDA_VISIBLE_DEVICES=0,1 uv run rl @ F': /CUDA_VISIBLE_DEVICES=… npx ratchet-rl rl @ F/,
    'prime login': /PRIME_API_KEY/,
    'prime rl list': /npx ratchet-rl runs/,
    'uv sync': /npx ratchet-rl env install/,
    'vllm serve Qwen/Qwen2.5-7B-Instruct --port 8007': /"vllm serve Qwen\/Qwen2\.5-7B-Instruct --port 8007" without/,
    'bash scripts/tmux.sh': /npx ratchet-rl attach RUN/,
  };
  for (const [line, says] of Object.entries(refused)) {
    test(line, () => assert.throws(() => read(line), { code: 'ConfigInvalid', message: says }));
  }
});
