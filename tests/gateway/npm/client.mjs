// OpenAI's own client for JavaScript, unchanged, against the server of the first argument; prints what it saw.
import OpenAI, { toFile } from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "unused", maxRetries: 2 });
const seen = {};

async function caught(action) {
  try {
    await action();
  } catch (error) {
    return [error.constructor.name, error.status, error.code, error.param];
  }
  return null;
}

let video = await client.videos.create({ prompt: "finish", size: "64x64", seconds: "1" });
seen.created = [video.object, video.status, video.size];
while (!["completed", "failed"].includes(video.status)) {
  await new Promise((done) => setTimeout(done, 50));
  video = await client.videos.retrieve(video.id);
}
seen.polled = [video.status, video.progress];
const content = await client.videos.downloadContent(video.id);
seen.content = await content.text();
const thumbnail = await client.videos.downloadContent(video.id, { variant: "thumbnail" });
seen.thumbnail = await thumbnail.text();

for (let number = 0; number < 4; number++) await client.videos.create({ prompt: `wait ${number}` });
seen.listed = [];
for await (const each of client.videos.list({ limit: 2, order: "asc" })) seen.listed.push(each.prompt);
seen.deleted = (await client.videos.delete(video.id)).deleted;

const headers = { "Idempotency-Key": "one" };
const first = await client.videos.create({ prompt: "wait once" }, { headers });
const again = await client.videos.create({ prompt: "wait once" }, { headers });
seen.same = first.id === again.id;

seen.bad = await caught(() => client.videos.create({ prompt: "a cat", size: "100x64" }));
seen.missing = await caught(() => client.videos.retrieve(video.id));
seen.early = await caught(() => client.videos.downloadContent(first.id));
seen.reused = await caught(() => client.videos.create({ prompt: "another" }, { headers }));
const picture = await toFile(Buffer.from("GIF89a"), "cat.gif");
seen.picture = await caught(() => client.videos.create({ prompt: "a cat", input_reference: picture }));
const pixel =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";
const starts = [
  await toFile(Buffer.from(pixel, "base64"), "pixel.png"),
  { image_url: `data:image/png;base64,${pixel}` },
];
seen.started = [];
for (const input_reference of starts) {
  seen.started.push((await client.videos.create({ prompt: "a cat", input_reference })).has_input_reference);
}
const elsewhere = { image_url: "http://127.0.0.1:9/cat.png" };
seen.elsewhere = await caught(() => client.videos.create({ prompt: "a cat", input_reference: elsewhere }));
seen.models = [];
for await (const model of client.models.list()) seen.models.push(model.id);
console.log(JSON.stringify(seen));
