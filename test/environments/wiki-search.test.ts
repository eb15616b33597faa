import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, test } from 'node:test';
import { playAndScore, demonstratingPolicy, scriptedPolicy, callText } from '../../backends/environments/kit.ts';
import { loadEnvironment, wikiTools } from '../../environments/wiki-search/index.ts';
import { makePages } from '../../environments/wiki-search/pages.ts';
import { makeQuestions } from '../../environments/wiki-search/questions.ts';
import { makeWorld } from '../../environments/wiki-search/world.ts';

const world = makeWorld();
const pages = makePages(world);
const questions = makeQuestions(world);
const sections = new Map(pages.flatMap((page) => page.sections.map(({ id, text }) => [id, text])));
const environment = loadEnvironment({});
const example = environment.dataset.at(0);
const [search, view, read] = wikiTools(pages, 10);
const ask = (query: string) => search!.call(JSON.stringify({ query }), { example, earlier: [] });

describe('the collection of wiki-search', () => {
  test('has pages of one id each, and a section for every answer', () => {
    assert.equal(new Set(pages.map(({ id }) => id)).size, pages.length);
    for (const { question, answer, sections: needed } of questions) {
      const texts = needed.map((id) => sections.get(id));
      assert.ok(
        texts.every((text) => text !== undefined),
        question,
      );
      assert.ok(texts.at(-1)!.includes(answer), `${question} ${answer}: ${texts.join(' ')}`);
    }
  });

  test('is the same every time', () => {
    assert.deepEqual(makePages(makeWorld()), pages);
  });

  test('shares no question between training and held out, and asks each once', () => {
    const asked = (dataset: typeof environment.dataset) =>
      Array.from({ length: dataset.length }, (_, i) => dataset.at(i).prompt.at(-1)!.content);
    const [train, heldOut] = [asked(environment.dataset), asked(environment.evalDataset)];
    assert.equal(new Set([...train, ...heldOut]).size, questions.length);
    assert.ok(heldOut.length > 50);
  });
});

describe('the tools of wiki-search', () => {
  test("a question's words find the page that answers it, or names who does", async () => {
    for (const {
      question,
      sections: [first],
    } of questions.filter((_, i) => i % 7 === 0)) {
      const found = (await ask(question)).split('\n').map((line) => line.split(':')[0]);
      assert.ok(found.includes(first!.split(':')[0]), question);
    }
  });

  test('a misspelt name is found as well; words that are nowhere are said to be', async () => {
    const [town] = world.towns;
    assert.ok((await ask(`${town!.name.slice(0, -1)}x`)).includes(town!.name));
    assert.equal(await ask('xyzzy'), 'No page has any of these words.');
  });

  test('pages show their sections and sections their text; wrong ids are told, not thrown', async () => {
    const context = { example, earlier: [] };
    const [page] = pages;
    const [section] = page!.sections;
    assert.ok(
      (await view!.call(JSON.stringify({ page_id: page!.id }), context)).includes(`${section!.id}: ${section!.name}`),
    );
    assert.equal(await read!.call(JSON.stringify({ section_id: section!.id }), context), section!.text);
    assert.match(await view!.call('{"page_id": "nowhere"}', context), /^Error: there is no page "nowhere"/);
    assert.match(await read!.call('{"page": 1}', context), /^Error: read_section was called with wrong arguments/);
  });
});

describe('the reward of wiki-search', () => {
  const answering = (text: string) =>
    playAndScore(
      environment,
      example,
      scriptedPolicy(() => text),
    );

  test('is 1 for the right answer in its words, whatever its case and punctuation', async () => {
    for (const said of [
      example.answer,
      `I looked. Answer: ${example.answer}.`,
      `ANSWER: the ${example.answer.toUpperCase()}`,
    ]) {
      assert.equal((await answering(said)).reward, 1, said);
    }
    for (const said of ['', 'Answer:', `Answer: not ${example.answer}`])
      assert.equal((await answering(said)).reward, 0, said);
  });

  test('demonstrations read what is needed and are right', async () => {
    for (let i = 0; i < environment.evalDataset.length; i += 5) {
      const held = environment.evalDataset.at(i);
      const policy = await demonstratingPolicy(environment, held, Math.random);
      const { reward, metrics } = await playAndScore(environment, held, policy!);
      assert.deepEqual([reward, metrics['right_sections']], [1, 1]);
    }
  });

  test('max_turns ends a rollout that only searches', async () => {
    const short = loadEnvironment({ max_turns: 3 });
    const searching = scriptedPolicy(() => callText('search_pages', { query: 'rope' }));
    const { turns, reward } = await playAndScore(short, example, searching);
    assert.deepEqual([turns.length, reward], [3, 0]);
  });

  test('a judge is asked in place of comparing texts, where one is named', async () => {
    const prompts: string[] = [];
    const server = createServer((request, response) => {
      const parts: Buffer[] = [];
      request.on('data', (part: Buffer) => parts.push(part));
      request.on('end', () => {
        const { messages } = JSON.parse(Buffer.concat(parts).toString()) as { messages: { content: string }[] };
        prompts.push(messages[0]!.content);
        const content = messages[0]!.content.includes('judge: about right') ? 'Yes.' : 'No.';
        response.setHeader('content-type', 'application/json');
        response.end(JSON.stringify({ choices: [{ message: { role: 'assistant', content } }] }));
      });
    }).listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    try {
      const base_url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
      const judged = loadEnvironment({ judge: { base_url, model: 'judge' } });
      const scored = async (text: string) =>
        (
          await playAndScore(
            judged,
            example,
            scriptedPolicy(() => text),
          )
        ).reward;
      assert.equal(await scored('Answer: about right'), 1);
      assert.equal(await scored('Answer: wrong'), 0);
      assert.ok(prompts[0]!.includes(`Right answer: ${example.answer}`));
    } finally {
      server.close();
    }
  });
});
